"""The runner of studies: what is missing, what fits in the time, and the ledger it writes."""

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from sklearn.neighbors import KNeighborsClassifier
from torch import nn
from torchvision.transforms import v2

import selfsight
from selfsight.backbones.flops import multiply_adds
from selfsight.cli.main import main
from selfsight.data import CachedImages
from selfsight.data.eval_transform import standard_transform
from selfsight.errors import DivergedError, StoppedError, UserError
from selfsight.evals.feature_statistics import decay, effective_rank, eigenvalues, uniformity
from selfsight.evals.labeled_data import LabeledData
from selfsight.options.study_options import STUDY_DEFAULTS
from selfsight.recipe import Start, to_dict
from selfsight.runs.run_lock import lock_run
from selfsight.studies import STUDIES, run_study, train_arms
from selfsight.studies import plan_jobs as plan_jobs_module
from selfsight.studies.ledger import Entry, find_entries, hash_recipe, read_ledger
from selfsight.studies.measure_label_free import (
    LabelFree,
    measure_label_free,
    select_test_images,
)
from selfsight.studies.plan_jobs import (
    Job,
    StudyData,
    decode_transfer,
    hold_out,
    make_quick,
    open_study_data,
    open_transfer,
    plan_jobs,
)
from selfsight.studies.result_tables import list_results
from selfsight.studies.train_arms import estimate_seconds, run_jobs
from selfsight.train import checkpoint
from selfsight.views import View
from tests.evals.small_networks import bright, labeled
from tests.evals.test_knn import clouds
from tests.evals.test_linear_lbfgs import as_features

EQCO = STUDIES["eqco_negatives"]


def entry_of(job: Job, **changes) -> Entry:
    """An entry as if the job had been trained."""
    entry = Entry(
        study=job.study,
        arm=job.arm,
        scale=job.scale,
        seed=job.recipe.seed,
        scored_on=job.scored_on,
        recipe=json.loads(json.dumps(to_dict(job.recipe))),
        recipe_hash=hash_recipe(job.recipe),
        version={},
        device="CPU",
        command="",
        finished="",
        images={"train": 50000, "test": 10000},
        results={"linear": {"accuracy": 0.8, "low": 0.79, "high": 0.81}},
        curve={},
        seconds={"first_step": 10.0, "train": 100.0, "evaluate": 5.0, "total": 115.0},
        images_per_second=1000.0,
        peak_memory_gib=None,
    )
    return replace(entry, **changes)


def one_pixel_images() -> CachedImages:
    """As many images as CIFAR-10 has; the pixel and the name say their number."""
    number, one = torch.arange(50000), torch.ones(50000, dtype=torch.int64)
    names = [str(i) for i in range(50000)]
    pixels = number.to(torch.uint8)
    return CachedImages(pixels, one, one, channels=1, names=names, labels=number % 10)


def labeled_images(images: CachedImages) -> LabeledData:
    """The same images to train and to measure on."""
    return LabeledData(train=images, transform=standard_transform(32, channels=images.channels))


def jobs_of(*arms, **options) -> list[Job]:
    options = replace(STUDY_DEFAULTS, arms=arms or None, **options)
    return plan_jobs([EQCO], options, lambda recipe: recipe)


def test_all_arms_are_trained_with_one_seed_before_the_next():
    planned = jobs_of("cifar10_v2_k16", "eqco_negatives.cifar10_v2_k4096", seeds=(0, 1))
    named = [(job.arm, job.recipe.seed) for job in planned]
    arms = ("cifar10_v2_k16", "cifar10_v2_k4096")
    assert named == [(arm, seed) for seed in (0, 1) for arm in arms]


def test_studies_are_planned_in_their_order_and_a_run_that_two_share_once():
    studies = [STUDIES["jcl_multi_key"], EQCO]

    def planned(*arms, **options):
        options = replace(STUDY_DEFAULTS, arms=arms or None, **options)
        jobs = plan_jobs(studies, options, lambda recipe: recipe)
        return [(f"{job.study}.{job.arm}", job.recipe.seed) for job in jobs]

    every = [f"{study.name}.{arm.name}" for study in studies for arm in study.arms_at("cifar10")]
    shared = "eqco_negatives.cifar10_v2_k4096"  # has the settings of jcl_multi_key.cifar10_moco_v2
    expected = [(arm, seed) for seed in (0, 1) for arm in every if arm != shared]
    assert planned(seeds=(0, 1)) == expected
    assert planned("cifar10_v2_k16", "jcl_multi_key.cifar10_jcl") == [
        ("jcl_multi_key.cifar10_jcl", 0),
        ("eqco_negatives.cifar10_v2_k16", 0),
    ]
    assert planned(shared) == [(shared, 0)]
    with pytest.raises(UserError, match=r'^jcl_multi_key or eqco_negatives has no arm "cifar10_v2'):
        planned("cifar10_v2_k17")
    with pytest.raises(UserError, match=r'Did you mean "jcl_multi_key.cifar10_jcl"'):
        planned("jcl_multi_key.cifar10_jc")
    with pytest.raises(UserError, match=r"methods.simclr is not an arm of .* Name methods too"):
        planned("methods.simclr")


def test_one_command_and_one_call_train_several_studies(monkeypatch):
    planned = []

    def remember_jobs(jobs, *_, **__):
        planned.append([f"{job.study}.{job.arm}" for job in jobs])
        return []

    monkeypatch.setattr(train_arms, "run_jobs", remember_jobs)
    names = ["jcl_multi_key", "eqco_negatives"]
    arms = ["cifar10_jcl", "eqco_negatives.cifar10_v2_k16"]
    main(["study", *names, "--device", "cpu", "--again", "--arms", *arms])
    selfsight.study(names, device="cpu", again=True, arms=arms, quiet=True)
    selfsight.study(names[0], device="cpu", again=True, arms=arms[:1], quiet=True)
    both = ["jcl_multi_key.cifar10_jcl", "eqco_negatives.cifar10_v2_k16"]
    assert planned == [both, both, both[:1]]
    with pytest.raises(UserError, match="No study is named"):
        selfsight.study([])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Verdicts and figures: selfsight studies eqco_negatives --page eqco_negatives.html"),
        (["--quick"], "its numbers are not results"),
        (["--held-out"], ""),
        (["--optim.lr", "0.5"], ""),
    ],
)
def test_a_study_says_which_command_shows_its_results(words, said, monkeypatch, tmp_path, capsys):
    (job,) = jobs_of("cifar10_v2_k16")
    monkeypatch.setattr(run_study, "RESULTS", tmp_path)
    monkeypatch.setattr(train_arms, "run_jobs", lambda *_, **__: [entry_of(job)])
    main(["study", "eqco_negatives", "--arms", "cifar10_v2_k16", "--device", "cpu", *words])
    printed = " ".join(capsys.readouterr().out.split())
    assert said in printed and printed.count("selfsight studies") == (not words)
    assert "1 of 1 runs to do." in printed and "The ledger has" not in printed


def test_a_study_says_where_the_runs_are_that_it_leaves_out(monkeypatch, tmp_path, capsys):
    (job,) = jobs_of("cifar10_v2_k16")
    entry_of(job).write(tmp_path)
    monkeypatch.setattr(run_study, "RESULTS", tmp_path)
    main(["study", "eqco_negatives", "--arms", "cifar10_v2_k16", "--device", "cpu"])
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.endswith(
        "0 of 1 runs to do. The ledger has the others: `selfsight studies NAME` shows them, "
        "--again repeats them."
    )


def test_an_arm_is_done_by_a_run_of_the_same_settings_and_seed_only(tmp_path):
    (job,) = jobs_of("cifar10_v2_k16")
    entry_of(job, study="other", arm="equal").write(tmp_path)  # trained for another study
    entries = read_ledger([tmp_path])
    assert job.is_done(entries)
    assert not jobs_of("cifar10_v2_k16", seeds=(1,))[0].is_done(entries)
    assert not jobs_of("cifar10_v2_k16", held_out=True)[0].is_done(entries)
    assert not jobs_of("cifar10_v2_k16", settings=("--optim.lr", "0.06"))[0].is_done(entries)
    assert not jobs_of("cifar10_v2_eqco_k16")[0].is_done(entries)


def test_of_several_runs_of_an_arm_the_newest_counts():
    (job,) = jobs_of("cifar10_v2_k16")
    runs = [entry_of(job, finished=f"2026-0{month}-01 12:00") for month in (2, 3, 1)]
    for entries in (runs, runs[::-1]):
        assert find_entries(entries, job.recipe, scale="cifar10") == {0: runs[1]}


def test_saving_and_logging_do_not_decide_a_result_but_stored_size_and_first_weights_do():
    (job,) = jobs_of("cifar10_v2_k16")
    recipe, entries = job.recipe, [entry_of(job)]
    neutral = {"seed": 3, "log_every": 7, "measure_every": 2, "save_every": 5, "save_steps": 9}
    neutral |= {"keep_epochs": (1,), "save_minutes": 1.0, "repeatable": True}
    same = replace(recipe, **neutral, data=replace(recipe.data, path="elsewhere", labels=True))
    assert hash_recipe(same) == hash_recipe(recipe)
    assert find_entries(entries, same, scale="cifar10") == {0: entries[0]}
    size = replace(recipe, data=replace(recipe.data, store_size=64))
    start = replace(recipe, start=Start(name="another", checksum="abc"))
    for other in (size, start, replace(start, start=replace(start.start, checksum="def"))):
        assert not find_entries(entries, other, scale="cifar10")
    hashes = {hash_recipe(r) for r in (recipe, size, start)}
    assert len(hashes) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": [[0]]}, "seed is"),
        ({"recipe": 3}, "recipe is 3"),
        ({"results": {"linear": {"accuracy": "high"}}}, "it has no results.linear.low"),
        ({"seconds": {"train": 1.0}}, "it has no seconds.total"),
        ({"images": {"train": 1}}, "it has no images.test"),
        ({"curve": {"loss": [1.0]}}, "it has no curve.epoch"),
        ({"transfer": {"pets": {}}}, "it has no transfer.pets.linear"),
        ({"results": {"linear": {"accuracy": 7.0, "low": 6.9, "high": 7.1}}}, "results.linear is"),
    ],
)
def test_a_damaged_entry_is_named_with_the_field(tmp_path, change, said):
    path = entry_of(jobs_of("cifar10_v2_k16")[0]).write(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=rf"{path.name} is damaged: {said}"):
        read_ledger([tmp_path])
    path.write_text("[" * 100_000)
    with pytest.raises(UserError, match=f"{path.name} is damaged: it is not JSON"):
        read_ledger([tmp_path])


def test_a_setting_newer_than_an_entry_must_have_its_default():
    (job,) = jobs_of("cifar10_v2_k16")
    entry = entry_of(job)
    del entry.recipe["method"]["symmetric"]
    found = find_entries([entry], job.recipe, scale="cifar10")
    assert list(found) == [0]
    symmetric = replace(job.recipe, method=replace(job.recipe.method, queue_size=4096))
    symmetric = replace(symmetric, method=replace(symmetric.method, symmetric=True))
    assert not find_entries([entry], symmetric, scale="cifar10")


def test_unknown_arms_and_scales_are_explained():
    with pytest.raises(UserError, match=r'no arm "cifar10_v2_k17".* Did you mean "cifar10_v2_k16"'):
        jobs_of("cifar10_v2_k17")
    with pytest.raises(UserError, match="Give --scale cifar10 or imagenet or imagenette"):
        jobs_of(scale="stl10")


def test_the_time_of_an_arm_is_estimated_from_the_most_similar_entry():
    k16, k4096 = jobs_of("cifar10_v2_k16", "cifar10_v2_k4096")
    (simo,) = jobs_of("cifar10_simo_k16")
    seconds = {"first_step": 1.0, "train": 7.0, "evaluate": 1.0, "total": 9.0}
    entries = [entry_of(simo, seconds=seconds), entry_of(k4096)]
    assert estimate_seconds(k16.recipe, entries, "CPU", 50000) == pytest.approx(115)
    elsewhere = [entry_of(k4096, device="another")]
    views = 50 * 50000 * 2  # a hundred in a second, before anything is measured
    assert estimate_seconds(k16.recipe, elsewhere, "CPU", 50000) == pytest.approx(views / 100 + 20)
    longer = replace(k16.recipe, epochs=100)
    assert estimate_seconds(longer, entries, "CPU", 50000) == pytest.approx(215)
    shared = [entries[0], entry_of(k16, other_memory_gib=10.0)]  # its time says little
    assert estimate_seconds(k16.recipe, shared, "CPU", 50000) == pytest.approx(9)
    assert estimate_seconds(k16.recipe, shared[1:], "CPU", 50000) == pytest.approx(115)


def test_another_network_takes_as_much_longer_as_it_has_more_multiplications():
    small, large = jobs_of("cifar10_v2_k16", scale="small") + jobs_of("cifar10_v2_k16")
    more = multiply_adds(large.recipe.backbone) / multiply_adds(small.recipe.backbone)
    assert more > 100
    seconds = estimate_seconds(large.recipe, [entry_of(small)], "CPU", 50000)
    assert seconds == pytest.approx(100 * more + 15)
    # The same network with another method says more than another network with the same method.
    (simo,) = jobs_of("cifar10_simo_k16")
    entries = [entry_of(small), entry_of(simo)]
    assert estimate_seconds(large.recipe, entries, "CPU", 50000) == pytest.approx(115)


def test_an_arm_begins_only_if_it_is_expected_to_end_in_time(monkeypatch, tmp_path, capsys):
    began = []

    def run_job(job, *_, work, **__):
        began.append(job.arm)
        job.run_folder(work).path.mkdir(parents=True)
        return entry_of(job)

    monkeypatch.setattr(train_arms, "run_job", run_job)
    data = StudyData(one_pixel_images(), labeled_images(one_pixel_images()))
    monkeypatch.setattr(train_arms, "open_study_data", lambda *_, **__: data)
    todo = jobs_of("cifar10_v2_k16", "cifar10_v2_k4096", "cifar10_v2_eqco_k16")
    for seconds, count in ((1, 1), (116, 3), (114, 1)):  # an arm like these takes 115 s
        began.clear()
        finished = run_jobs(
            todo,
            torch.device("cpu"),
            Console(),
            data="",
            transfer={},
            entries=[entry_of(job) for job in todo[1:]],
            ledger=None,
            work=tmp_path / str(seconds),
            began=time.monotonic(),
            end=time.monotonic() + seconds,
        )
        assert len(began) == len(finished) == count
    assert "Too long for the time left; repeat the command later" in capsys.readouterr().out


def test_the_rest_of_an_interrupted_arm_is_estimated_by_its_own_speed(tmp_path):
    (job,) = jobs_of("cifar10_v2_k16")  # 50 epochs, batch 512
    assert train_arms._seconds_left(job, 51200, tmp_path) is None
    run = job.run_folder(tmp_path)
    run.path.mkdir()
    run.log({"step": 2500, "epoch": 25.0, "images_per_second": 12800.0})
    assert train_arms._seconds_left(job, 51200, tmp_path) == pytest.approx(100 + 20)
    (run.path / train_arms.ENTRY).touch()
    assert train_arms._seconds_left(job, 51200, tmp_path) is None  # it is trained again


def test_an_arm_that_asks_for_finer_measuring_gets_it(monkeypatch, tmp_path):
    spacings = []

    def pretrain(recipe, *_, **__):
        spacings.append(recipe.measure_every)
        raise StoppedError("", 15)

    monkeypatch.setattr(train_arms, "pretrain", pretrain)
    data = StudyData(one_pixel_images(), labeled_images(one_pixel_images()))
    cpu, console = torch.device("cpu"), Console(quiet=True)
    (job,) = jobs_of("cifar10_v2_k16")
    for epochs, measure_every in ((200, 2), (200, 50), (800, 10), (50, 10), (10, 10)):
        changed = replace(job.recipe, epochs=epochs, measure_every=measure_every)
        wanted = replace(job, recipe=changed, adapted=changed)
        with pytest.raises(StoppedError):
            train_arms.run_job(wanted, data, cpu, console, work=tmp_path, end=None, startup=0.0)
    assert spacings == [2, 10, 40, 2, 1]  # 10 is the default of all recipes


def test_a_stopped_arm_says_how_to_go_on_and_keeps_its_seconds(monkeypatch, tmp_path):
    def pretrain(recipe, run, *_, clock, **__):
        for phase in stopped_in.pop(0):
            clock.last -= 10.0
            clock.lap(phase)
        clock.last -= 1.0
        raise StoppedError("Resume with: selfsight resume RUN", 15)

    monkeypatch.setattr(train_arms, "pretrain", pretrain)
    (job,) = jobs_of("cifar10_v2_k16")
    data = StudyData(one_pixel_images(), labeled_images(one_pixel_images()))
    cpu, console = torch.device("cpu"), Console(quiet=True)
    # The third is stopped before its first step, and counts nothing.
    stopped_in = [["compile", "steps"], ["compile"], []]
    for expected in ((10, 11), (20, 12), (20, 12)):
        with pytest.raises(StoppedError, match="Repeat the command to continue it") as stopped:
            train_arms.run_job(job, data, cpu, console, work=tmp_path, end=None, startup=0.0)
        assert stopped.value.signal_number == 15
        seconds = json.loads((job.run_folder(tmp_path).path / "seconds.json").read_text())
        assert (seconds["first_step"], seconds["train"]) == pytest.approx(expected, abs=0.5)


@pytest.mark.parametrize("held_out", [False, True])
def test_an_entry_has_the_times_images_and_recipe_of_a_run_that_was_trained_to_the_end(
    held_out, monkeypatch, tmp_path
):
    def pretrain(recipe, run, *_, clock, **__):
        for phase, seconds in (("compile", 10.0), ("steps", 70.0), ("evaluation", 20.0)):
            clock.last -= seconds
            clock.lap(phase)
        for step, speed in ((97, 1.0), (194, 600.0), (291, 400.0), (388, 500.0)):
            run.log({"step": step, "epoch": step / 97, "loss": 1.0, "images_per_second": speed})
        if diverges:
            raise DivergedError("By step 388 loss is no longer finite.")
        student = SimpleNamespace(backbone=nn.Identity())
        return SimpleNamespace(step=last_step, method=SimpleNamespace(student=student))

    (job,) = jobs_of("cifar10_v2_k16", held_out=held_out)
    job = replace(job, adapted=replace(job.adapted, precision="fp16"))  # of a device without bf16
    images = one_pixel_images()
    data = StudyData(images, labeled_images(images))
    if held_out:
        data = hold_out(images, labeled_images(images))
    found = {"linear": {"accuracy": 0.7, "low": 0.6, "high": 0.8}}
    scores = train_arms.Scores(found, {}, LabelFree({"lidar": 3.0}, [1] * 50))
    monkeypatch.setattr(train_arms, "pretrain", pretrain)
    monkeypatch.setattr(train_arms, "score", lambda *_: scores)

    def run(work):
        cpu, console = torch.device("cpu"), Console(quiet=True)
        return train_arms.run_job(job, data, cpu, console, work=work, end=None, startup=30.0)

    steps = 50 * ((45_000 if held_out else 50_000) // 512)
    last_step, diverges = steps - 1, False
    assert run(tmp_path / "stopped") is None  # it goes on in the next call
    last_step = steps
    entry = run(tmp_path / "whole")
    assert (entry.recipe_hash, entry.seed) == (hash_recipe(job.recipe), 0)
    assert find_entries([entry], job.recipe, scale="cifar10", scored_on=job.scored_on)
    assert entry.images["train"] == len(data.train) == (45_000 if held_out else 50_000)
    assert entry.images["test"] == (5_000 if held_out else 50_000)
    assert entry.source_images == 50_000
    expected = {"first_step": 10, "train": 90, "evaluate": 0, "total": 100, "startup": 30}
    assert entry.seconds == pytest.approx(expected, abs=5)  # on a machine that may be busy
    assert entry.images_per_second == 500.0  # the median after the first record
    assert entry.curve["epoch"] == [1.0, 2.0, 3.0, 4.0] and "online_knn" not in entry.curve
    assert (entry.results, entry.diverged) == (found, "")
    diverges = True
    entry = run(tmp_path / "diverged")
    assert (entry.results, entry.diverged) == ({}, "By step 388 loss is no longer finite.")


def test_arms_that_are_trained_again_begin_with_the_interrupted_one_and_end_with_the_newest(
    monkeypatch, tmp_path
):
    arms = ("cifar10_v2_k4096", "cifar10_v2_k16", "cifar10_v2_eqco_k16", "cifar10_simo_k16")
    first, second, third, fourth = jobs_of(*arms)
    for job in (first, second, fourth):
        path = job.run_folder(tmp_path).checkpoints / "last.pt"
        path.parent.mkdir(parents=True)
        path.touch()
    for job, seconds in ((first, 20), (second, 10)):  # trained to the end, the first one last
        finished = job.run_folder(tmp_path).path / train_arms.ENTRY
        finished.touch()
        os.utime(finished, (seconds, seconds))
    planned = []
    monkeypatch.setattr(train_arms, "run_jobs", lambda jobs, *_, **__: planned.extend(jobs) or [])
    selfsight.study(
        "eqco_negatives", arms=arms, again=True, work=tmp_path, device="cpu", quiet=True
    )
    assert [job.arm for job in planned] == [job.arm for job in (fourth, third, second, first)]


def test_a_run_folder_that_cannot_be_used_is_explained_without_flags_that_study_lacks(tmp_path):
    (job,) = jobs_of("cifar10_v2_k16")
    data = StudyData(one_pixel_images(), labeled_images(one_pixel_images()))
    cpu, console = torch.device("cpu"), Console(quiet=True)

    def train(work):
        train_arms.run_job(job, data, cpu, console, work=work, end=None, startup=0.0)

    run, said = job.run_folder(tmp_path), []
    with pytest.raises(UserError, match="cannot be created") as error:
        train(Path("/proc/x"))
    said.append(str(error.value))
    with lock_run(run), pytest.raises(UserError, match="is being written by") as error:
        train(tmp_path)
    said.append(str(error.value))
    run.checkpoints.mkdir(parents=True)
    (run.checkpoints / checkpoint.LAST).write_bytes(b"half")
    with pytest.raises(UserError, match="No checkpoint") as error:
        checkpoint.load(run)
    said.append(str(error.value))
    assert not any("--" in sentence for sentence in said)
    assert f"delete {run.path} and start the run again" in said[-1]


def test_images_must_exist_and_have_a_test_split(tmp_path):
    (job,) = jobs_of("cifar10_v2_k16")
    cpu, console = torch.device("cpu"), Console(quiet=True)
    with pytest.raises(UserError, match="There is no file or folder"):
        open_study_data(job, str(tmp_path / "gone"), cpu, console)
    Image.new("RGB", (4, 4)).save(tmp_path / "one.png")
    with pytest.raises(UserError, match="has no training and test images"):
        open_study_data(job, str(tmp_path), cpu, console)


def shapes_of(tmp_path, classes=12, count=24):
    """Small images whose class is their number modulo the classes, for training and testing."""
    for split in ("train", "test"):
        for i in range(count):
            folder = tmp_path / split / f"{i % classes:02}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), (i, 0, 0)).save(folder / f"{i:03}.png")
    return str(tmp_path)


def test_the_small_scale_has_the_arms_of_cifar10_with_narrow_networks_and_a_tenth_of_the_images(
    tmp_path, monkeypatch
):
    for study in STUDIES.values():
        large, small = study.arms_at("cifar10"), study.arms_at("small")
        assert ("small" in study.scales) == bool(large)
        large = [a for a in large if getattr(a.build().method, "queue_size", 0) <= 5000]
        for arm, shrunk in zip(large, small, strict=True):
            assert (shrunk.name, shrunk.settings) == (arm.name, arm.settings)
            assert shrunk.published is None and shrunk.like
    job = next(j for j in jobs_of("cifar10_v2_k16", scale="small") if j.arm == "cifar10_v2_k16")
    (large,) = jobs_of("cifar10_v2_k16")
    assert job.recipe.backbone.name == "resnet8_narrow" and job.command.count("--scale small") == 1
    backbone = large.recipe.backbone
    assert replace(job.recipe, backbone=backbone) == large.recipe
    arm = STUDIES["fast_moco_epochs"].arms_at("small")[0]
    assert arm.build().method.dim == 256  # at 2048, the recipe's, a step takes a CPU ten seconds
    monkeypatch.setitem(plan_jobs_module.SIZES, "small", (240, 12))
    monkeypatch.setattr(plan_jobs_module, "SMALL_IMAGES", 60)
    path = shapes_of(tmp_path, count=240)
    data = open_study_data(job, path, torch.device("cpu"), Console(quiet=True), any_images=False)
    assert torch.equal(data.train.labels.bincount(), torch.full((12,), 5))
    assert len(data.labeled.labels()[1]) == 240 and data.path == ""


def test_an_encoder_is_scored_on_other_images_too_with_their_own_classes(tmp_path):
    (job,) = jobs_of("cifar10_v2_k16", quick=True)
    cpu, console = torch.device("cpu"), Console(quiet=True)
    own, other = (shapes_of(tmp_path / f"colors{n}", classes=n) for n in (12, 3))
    data = open_study_data(job, own, cpu, console)
    transform = data.labeled.transform
    data = replace(data, transfer=decode_transfer(open_transfer([other]), transform, cpu))
    torch.manual_seed(0)
    backbone = job.recipe.backbone.build().eval()
    scores = train_arms.score(backbone, job.recipe, data)
    alone = train_arms.score(backbone, job.recipe, open_study_data(job, other, cpu, console))
    assert scores.transfer == {"colors3": alone.results} and scores.results != alone.results
    assert [*open_transfer([other, f"again={other}"], quick=True)] == ["colors3", "again"]
    equals = shapes_of(tmp_path / "a=b", classes=3)
    assert [*open_transfer([equals, f"x={equals}"], quick=True)] == ["a=b", "x"]
    with pytest.raises(UserError, match=r"which another data set is\. Give it a name"):
        open_transfer([other, other])
    with pytest.raises(UserError, match=r'called "arm", which is not a name'):
        open_transfer([f"arm={other}"])
    with pytest.raises(UserError, match="has no training and test images"):
        open_transfer([f"{other}/train"])
    with pytest.raises(UserError, match="There is no file or folder"):
        selfsight.study("eqco_negatives", data=own, transfer=("nowhere",), quiet=True)
    with pytest.raises(UserError, match="--transfer scores on test images"):
        replace(STUDY_DEFAULTS, held_out=True, transfer=(other,))


def test_an_arm_is_scored_with_our_settings_of_knn_and_with_those_of_lightly():
    (h, y), (test_h, test_y) = clouds(500), clouds(300, seed=1)
    data = labeled(bright(500, classes=5), test=bright(300, classes=5))
    found = train_arms._score_features(data, as_features(h, y), as_features(test_h, test_y))
    for name, k, temperature in (("knn", 20, 0.07), ("knn_200", 200, 0.1)):

        def votes(distance, temperature=temperature):
            return np.exp((1 - distance) / temperature)

        judge = KNeighborsClassifier(k, metric="cosine", weights=votes, algorithm="brute")
        expected = judge.fit(h.numpy(), y.numpy()).score(test_h.numpy(), test_y.numpy())
        assert found[name]["accuracy"] == pytest.approx(expected, abs=1e-6)
    assert len({found[name]["accuracy"] for name in ("knn", "knn_200", "linear")}) == 3


def test_other_images_are_not_results_of_the_data_set(tmp_path, capsys):
    path = shapes_of(tmp_path)
    (job,) = jobs_of("cifar10_v2_k16")
    cpu = torch.device("cpu")
    said = "has 24 training images of 12 classes, and cifar10 has 50,000 of 10"
    with pytest.raises(UserError, match=rf"{said}.* --ledger FOLDER"):
        open_study_data(job, path, cpu, Console(quiet=True), any_images=False)
    data = open_study_data(job, path, cpu, Console(width=300))
    assert said in capsys.readouterr().out
    assert data.path == path and data.fingerprint["images"] == 24
    quick = replace(job, quick=True)  # its results are never in the ledger of the package
    data = open_study_data(quick, path, cpu, Console(quiet=True), any_images=False)
    assert data.path == ""
    with pytest.raises(UserError, match="--data is missing: where are the images of imagenette"):
        selfsight.study("methods", scale="imagenette", device="cpu", quiet=True)


def test_as_many_images_of_other_classes_are_not_those_of_the_data_set(tmp_path, monkeypatch):
    path, cpu = shapes_of(tmp_path), torch.device("cpu")  # 24 images of 12 classes
    (job,) = jobs_of("cifar10_v2_k16")
    monkeypatch.setitem(plan_jobs_module.SIZES, "cifar10", (24, 12))
    assert open_study_data(job, path, cpu, Console(quiet=True), any_images=False)
    monkeypatch.setitem(plan_jobs_module.SIZES, "cifar10", (24, 10))
    with pytest.raises(UserError, match="of 12 classes, and cifar10 has 24 of 10"):
        open_study_data(job, path, cpu, Console(quiet=True), any_images=False)


def test_a_quick_study_has_images_of_all_classes(tmp_path, monkeypatch):
    monkeypatch.setattr("selfsight.studies.plan_jobs.QUICK_IMAGES", 12)
    (job,) = jobs_of("cifar10_v2_k16", quick=True)
    data = open_study_data(
        job, shapes_of(tmp_path, count=48), torch.device("cpu"), Console(quiet=True)
    )
    for y in data.labeled.labels():
        assert y.bincount().tolist() == [1] * 12


def test_seeds_are_given_once_and_the_ledger_is_checked_before_training(tmp_path):
    with pytest.raises(UserError, match="Use --seeds alone"):
        jobs_of("cifar10_v2_k16", settings=("--seed", "3"))
    with pytest.raises(UserError, match="--seeds has no number"):
        jobs_of("cifar10_v2_k16", seeds=())
    with pytest.raises(UserError, match="--arms has no name"):
        replace(STUDY_DEFAULTS, arms=())
    with pytest.raises(UserError, match="It is at --scale imagenette"):
        plan_jobs([STUDIES["methods"]], replace(STUDY_DEFAULTS, arms=["imagenette_moco"]), replace)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be written: .* with --ledger"):
        selfsight.study(
            "methods", device="cpu", quick=True, ledger=tmp_path / "file", data="shapes", quiet=True
        )
    with pytest.raises(UserError, match="not a folder with results"):
        selfsight.reproduce("methods.moco", ledger=tmp_path / "gone")


def test_held_out_does_not_read_the_test_images(tmp_path):
    path = shapes_of(tmp_path, classes=3, count=60)
    for file in (tmp_path / "test").rglob("*.png"):
        file.write_bytes(b"no image")
    (job,) = jobs_of("cifar10_v2_k16", held_out=True)
    data = open_study_data(job, path, torch.device("cpu"), Console(quiet=True))
    assert len(data.train) == 54 and data.labeled.test is None


def test_held_out_images_are_500_of_each_class_and_not_trained_on():
    images = one_pixel_images()
    data = hold_out(images, labeled_images(images))
    train, labeled = data.train, data.labeled
    measured = [y.bincount().tolist() for y in labeled.labels()]
    assert measured == [[4500] * 10, [500] * 10]
    assert [int(p) for p in train.flat] == [int(name) % 256 for name in train.names]
    assert [*map(int, train.names)] == labeled.train_index.tolist()
    assert not {*train.names} & {*map(str, labeled.test_index.tolist())}


def test_arms_are_measured_on_images_at_full_size_and_not_on_those_stored_for_training(tmp_path):
    (job,) = jobs_of("cifar10_v2_k16")
    noise = np.random.default_rng(0).integers(0, 256, (8, 90, 70, 3), dtype=np.uint8)
    for i, pixels in enumerate(noise):
        folder = tmp_path / ("train" if i < 4 else "test") / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    data = open_study_data(job, str(tmp_path), torch.device("cpu"), Console(quiet=True))
    resize = v2.Compose([v2.Resize(32, antialias=True), v2.CenterCrop(32)])
    transform = data.labeled.transform
    for found, order in zip(
        data.labeled.features(nn.Flatten()), ((0, 2, 1, 3), (4, 6, 5, 7)), strict=True
    ):
        pixels = resize(torch.from_numpy(noise[list(order)]).permute(0, 3, 1, 2)) / 255
        expected = v2.functional.normalize(pixels, transform.mean, transform.std).flatten(1)
        gray_level = 1 / 255 / min(transform.std)
        torch.testing.assert_close(found.h, expected, rtol=0, atol=1.01 * gray_level)


@pytest.mark.parametrize("held_out", [False, True])
def test_measures_without_labels_are_those_of_the_images_that_are_scored(tmp_path, held_out):
    (job,) = jobs_of("cifar10_v2_k16", held_out=held_out)
    noise = np.random.default_rng(0).integers(0, 256, (120, 32, 32, 3), dtype=np.uint8)
    for i, pixels in enumerate(noise):
        folder = tmp_path / ("train" if i < 100 else "test") / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    labeled = open_study_data(job, str(tmp_path), torch.device("cpu"), Console(quiet=True)).labeled
    torch.manual_seed(0)
    backbone = make_quick(job.recipe).backbone.build()
    _, test = labeled.features(backbone)
    numbers, counts = measure_label_free(backbone, job.recipe, labeled, test)
    named = {"effective_rank", "alpha", "alignment", "uniformity", "lidar", "view_variance"}
    assert {*numbers} == named
    assert 0 < numbers["view_variance"] < 1 and sum(counts) == len(test.h)
    assert numbers["effective_rank"] == pytest.approx(effective_rank(test.h).item(), rel=1e-4)
    assert numbers["uniformity"] == pytest.approx(uniformity(test.h).item(), rel=1e-4)
    assert numbers["alpha"] == pytest.approx(decay(eigenvalues(test.h)).item(), rel=1e-4)
    middles = (np.arange(50) + 0.5) / 50  # of the bins
    mean = np.dot(middles, counts) / sum(counts)
    assert numbers["view_variance"] == pytest.approx(mean, abs=0.01)
    # Views that are the images: both have the same features.
    view = View(size=32, crop="center", flip=0.0, jitter_p=0.0, gray=0.0, blur=0.0)
    plain = replace(job.recipe, views=(view, view))
    numbers, counts = measure_label_free(backbone, plain, labeled, test)
    assert numbers["alignment"] == 0 and numbers["view_variance"] == pytest.approx(0, abs=1e-6)
    assert counts == [len(test.h)] + 49 * [0]
    images = select_test_images(labeled, labeled.transform)
    assert len(images) == len(test.h) == (10 if held_out else 20)
    torch.testing.assert_close(images.labels, test.y)


def test_entries_without_measures_that_need_no_labels_still_load(tmp_path):
    (job,) = jobs_of("cifar10_v2_k16")
    path = entry_of(job, label_free={"lidar": 3.5}).write(tmp_path)
    assert read_ledger([tmp_path])[0].label_free == {"lidar": 3.5}
    saved = json.loads(path.read_text())
    del saved["label_free"]
    path.write_text(json.dumps(saved))
    assert read_ledger([tmp_path])[0].label_free == {}


def test_selected_images_keep_their_pixels():
    heights, widths = torch.tensor([1, 2, 3]), torch.tensor([2, 1, 2])
    flat = torch.arange(10, dtype=torch.uint8)
    images = CachedImages(flat, heights, widths, channels=1, names=["a", "b", "c"])
    chosen = images.select(torch.tensor([2, 0]))
    assert chosen.flat.tolist() == [4, 5, 6, 7, 8, 9, 0, 1]
    assert list(chosen.names) == ["c", "a"] and chosen.starts.tolist() == [0, 6]


def test_quick_networks_are_tiny_and_of_the_same_kind():
    pairs = set()
    for arm in (arm for study in STUDIES.values() for arm in study.arms):
        recipe = arm.build()
        pairs.add((recipe.backbone, make_quick(recipe).backbone))
    for backbone, quick in pairs:
        with torch.device("meta"):  # no memory, no numbers
            full, tiny = backbone.build(), quick.build()
        assert sum(p.numel() for p in tiny.parameters()) < 120_000, quick.name
        assert type(tiny) is type(full)
        kinds = [{type(m) for m in network.modules()} for network in (tiny, full)]
        if quick.is_vit:  # layers of the same kinds, and as many tokens
            assert kinds[0] == kinds[1] and tiny.patch == full.patch


@pytest.mark.slow
def test_a_study_is_trained_evaluated_and_recorded_and_an_interrupted_arm_goes_on(
    tmp_path, monkeypatch
):
    """Both by time limits: without one, and with one that has passed after the first step."""
    common = dict(
        data="shapes",
        quick=True,
        device="cpu",
        arms=("cifar10_v2_k16",),
        settings=("--epochs", "2", "--batch-size", "256"),
        transfer=("digits",),
    )
    folders = [tmp_path / name for name in ("whole", "parts")]
    options = [dict(ledger=f / "ledger", work=f / "work") for f in folders]
    (whole,) = selfsight.study("eqco_negatives", **common, **options[0])
    assert selfsight.study("eqco_negatives", **common, **options[1], minutes=0.0) == []
    (saved,) = (folders[1] / "work").rglob(checkpoint.LAST)
    assert checkpoint.read_step(saved) == 1
    (resumed,) = selfsight.study("eqco_negatives", **common, **options[1])
    assert whole["results"] == resumed["results"] and whole["transfer"] == resumed["transfer"]
    assert whole["transfer"]["digits"].keys() == whole["results"].keys()
    assert whole["curve"]["loss"] == resumed["curve"]["loss"]
    for folder, entry in zip(folders, (whole, resumed), strict=True):
        (saved,) = read_ledger([folder / "ledger"])
        assert asdict(saved) == entry and saved.quick
        assert saved.seconds["total"] == pytest.approx(
            sum(saved.seconds[phase] for phase in ("first_step", "train", "evaluate"))
        )
    # A finished run is trained again from the start, not only scored again.
    logs, train = [], train_arms.pretrain

    def read_log_and_train(recipe, run, *args, **settings):
        logs.append(run.records())
        return train(recipe, run, *args, **settings)

    monkeypatch.setattr(train_arms, "pretrain", read_log_and_train)
    (again,) = selfsight.study("eqco_negatives", **common, **options[0])
    assert logs == [[]] and again["results"] == whole["results"]


def test_times_of_runs_that_shared_the_gpu_are_not_shown():
    job, other = jobs_of("cifar10_v2_k16", seeds=(0, 1))
    alone = entry_of(job, other_memory_gib=0.7)
    shared = entry_of(
        other,
        other_memory_gib=9.0,
        images_per_second=10.0,
        seconds=dict.fromkeys(alone.seconds, 1.0),
    )

    def times(*entries):
        rows = list_results(EQCO, "cifar10", entries)
        row = next(row for row in rows if row["arm"] == "cifar10_v2_k16")
        return row["training"], row["in all"], row["images/s"]

    assert times(alone, shared) == ("1 min 40 s", "1 min 55 s", "1,000")
    assert times(shared) == ("shared GPU",) * 3
