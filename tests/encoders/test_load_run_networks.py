"""Loading the networks of a run: the last checkpoint, or one that was kept."""

from dataclasses import replace

import pytest
import torch

from selfsight import api
from selfsight.encoders.load_run_networks import RunCheckpoint, find_checkpoint, load_method
from selfsight.errors import UserError
from selfsight.recipe import to_dict
from selfsight.recipes import RECIPES
from selfsight.run_files.json_files import write_json
from selfsight.run_files.run_folder import Run
from selfsight.train import checkpoint
from selfsight.train.pretrain import build_state
from tests.folders import images as image_folder
from tests.recipes.small import images, shrink

CPU = torch.device("cpu")


def fill(method, value):
    """Set every weight, and every key of a queue, to one number."""
    for tensor in method.state_dict().values():
        if tensor.is_floating_point():
            tensor.fill_(value)


@pytest.fixture(params=["moco.cifar10_r18_200ep", "instdisc.cifar10_r18_200ep"])
def saved(request, tmp_path):
    """A run that kept epochs 2 and 10 and saved a last one: weights 0.02, 0.1 and 0.5."""
    recipe, run = shrink(RECIPES[request.param]()), Run(tmp_path / "run")
    write_json(run.recipe_path, to_dict(recipe))
    state = build_state(recipe, run, images(), CPU)
    for epoch in (2, 10):
        fill(state.method, epoch / 100)
        checkpoint.keep(run, state.state_dict(), epoch)
    fill(state.method, 0.5)
    checkpoint.save(run, state.state_dict())
    return recipe, run


def test_each_checkpoint_of_a_run_is_found_by_its_name(saved):
    recipe, run = saved
    assert run.kept_epochs == [2, 10]
    names = {run.path: 0.5, run.kept_checkpoint(2): 0.02, run.kept_checkpoint(10): 0.1}
    names |= {str(run.checkpoints / "last.pt"): 0.5}
    for name, value in names.items():
        method = load_method(find_checkpoint(name), recipe, CPU)
        parts = [method.student]
        if hasattr(method, "teacher"):
            parts += [method.teacher.net, method.queue]
        for tensor in (t for part in parts for t in part.state_dict().values()):
            if tensor.is_floating_point():
                assert tensor.unique().item() == pytest.approx(value)


def test_a_checkpoint_in_place_of_a_run_is_told_how_it_is_evaluated(saved):
    file = saved[1].kept_checkpoint(2)
    with pytest.raises(UserError, match=rf"one checkpoint of .*--backbone {file} --out"):
        api.evaluate(file)


def test_names_that_are_no_checkpoint_of_a_run_are_left_to_others(saved, tmp_path):
    _, run = saved
    (tmp_path / "weights.pt").write_bytes(b"")
    for name in (tmp_path / "weights.pt", "timm:resnet18", tmp_path):
        assert find_checkpoint(name) is None
    with pytest.raises(UserError, match=r"epoch_3.pt does not exist.* has epoch_10.pt, epoch_2.pt"):
        find_checkpoint(run.kept_checkpoint(3))


def test_a_damaged_or_foreign_checkpoint_is_said_by_its_name(saved):
    recipe, run = saved
    kept = run.kept_checkpoint(2)
    kept.write_bytes(kept.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"epoch_2.pt cannot be used: it is damaged"):
        load_method(RunCheckpoint(run, kept), recipe, CPU)
    other = shrink(RECIPES["byol.cifar10_r18_100ep"]())
    with pytest.raises(UserError, match=r"epoch_10.pt cannot be used: it does not fit "):
        load_method(RunCheckpoint(run, run.kept_checkpoint(10)), other, CPU)


def test_a_run_without_a_checkpoint_is_told_to_resume(saved, tmp_path):
    recipe, _ = saved
    with pytest.raises(UserError, match="has no checkpoint yet"):
        load_method(RunCheckpoint(Run(tmp_path / "new")), recipe, CPU)


ANALYSIS = {
    "protocols": ("analysis",),
    "settings": ("--set.num-views", "2", "--set.max-images", "12", "--set.num-negatives", "4"),
    "device": "cpu",
    "untrained": False,
    "quiet": True,
}


@pytest.fixture
def trained(tmp_path):
    """A run of MoCo whose student and teacher differ, kept after epoch 1, on images of a folder."""
    recipe = shrink(RECIPES["moco.cifar10_r18_200ep"]())
    folder = image_folder(tmp_path / "photos", count=16)
    recipe = replace(
        recipe,
        data=replace(recipe.data, path=str(folder)),
        backbone=replace(recipe.backbone, name="resnet8_narrow"),  # of the package: no --trust
    )
    run = Run(tmp_path / "run")
    write_json(run.recipe_path, to_dict(recipe))
    state = build_state(recipe, run, images(), CPU)
    checkpoint.keep(run, state.state_dict(), 1)
    torch.manual_seed(1)
    for p in state.method.teacher.net.projector.parameters():
        p.data.normal_()
    checkpoint.save(run, state.state_dict())
    return run


def test_the_analysis_of_a_run_has_the_keys_of_its_teacher_and_a_figure_of_each_kept_epoch(trained):
    last = api.evaluate(trained.path, **ANALYSIS)["analysis"]
    figures = trained.image_json("analysis")
    assert [record["epoch"] for record in figures["epochs"]] == [1]
    # At the start the teacher equals the student, and positive pairs are closer.
    (before, _), (after, _) = figures["epochs"][0]["gradients"], figures["gradients"]
    assert before["loss"] < after["loss"] - 0.05
    kept = trained.kept_checkpoint(1)
    out = trained.path.parent / "kept"
    first = api.evaluate(backbone=str(kept), out=out, **ANALYSIS)["analysis"]
    assert Run(out).image_json("analysis")["gradients"] == figures["epochs"][0]["gradients"]
    assert first["lidar"] == last["lidar"]  # the students are equal
    queue = {"settings": (*ANALYSIS["settings"][:-1], "9", "65536", "--set.negatives", "queue")}
    api.evaluate(trained.path, **ANALYSIS | queue)
    counts = [row["num_negatives"] for row in trained.image_json("analysis")["gradients"]]
    assert counts == [9, 9, 16, 16]  # at most those in the queue


def test_a_kept_checkpoint_is_evaluated_and_loaded_as_the_run_is(trained):
    labeled = {"labeled": trained.path.parent / "photos", "device": "cpu", "quiet": True}
    settings = labeled | {"protocols": ("knn",), "k": 1, "untrained": False}
    names = (trained.checkpoints / "last.pt", trained.kept_checkpoint(1), trained.path)
    found = [
        api.evaluate(backbone=str(name), out=trained.path.parent / f"out{i}", **settings)["knn"]
        for i, name in enumerate(names)
    ]
    assert len({one["accuracy"] for one in found}) == 1
    views = {str(one["settings"].get("transform")) for one in found}
    assert len(views) == 1
    one, other = (api.load(name) for name in (trained.path, trained.kept_checkpoint(1)))
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
