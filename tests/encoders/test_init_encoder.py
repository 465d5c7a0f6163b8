import copy
from dataclasses import replace

import pytest
import safetensors.torch
import torch

from selfsight import api
from selfsight.backbones import BackboneConfig
from selfsight.encoders.init_encoder import import_start
from selfsight.errors import UserError
from selfsight.methods import Moment
from selfsight.nn import encoders
from selfsight.optim import Optim, build_optimizer
from selfsight.options.pretrain_options import PretrainOptions
from selfsight.recipe import Start
from selfsight.recipe_from_options import build_pretrain_recipe
from selfsight.train import init_weights
from selfsight.train.init_weights import build_method
from tests.folders import images

CPU = torch.device("cpu")
NETWORK = BackboneConfig(name="resnet8_narrow", stem="half", image_size=32)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return images(tmp_path_factory.mktemp("data") / "photos", count=16)


@pytest.fixture(scope="module")
def weights():
    """Weights that no seed draws, statistics included."""
    torch.manual_seed(123)
    state = NETWORK.build().state_dict()
    return {k: v + 0.01 * torch.rand(v.shape) if v.ndim else v for k, v in state.items()}


@pytest.fixture(scope="module")
def file(weights, tmp_path_factory):
    path = tmp_path_factory.mktemp("encoder") / "encoder.safetensors"
    safetensors.torch.save_file(weights, path)
    return path


def build(photos, file, method="simclr", settings=(), **changes):
    given = {"init": file, "stem": "half", "epochs": 1, "batch_size": 8} | changes
    options = PretrainOptions(method=method, settings=settings, **given)
    start = import_start(options)
    return build_pretrain_recipe(photos, options, CPU, start)[0], start


@pytest.mark.parametrize("name", ["moco", "byol", "fast_moco", "dino", "simsiam"])
def test_student_and_teacher_start_from_the_same_weights_and_heads_are_new(
    name, photos, file, weights
):
    recipe, start = build(photos, str(file), name)
    given = build_method(recipe, CPU, start=start.weights)
    for encoder in encoders(given):
        for key, value in encoder.backbone.state_dict().items():
            assert torch.equal(value, weights[key])
    random = build_method(replace(recipe, start=Start()), CPU).state_dict()
    for key, value in given.state_dict().items():
        if "backbone" not in key:
            assert torch.equal(value, random[key]), key


def one_step(method, factor):
    method = copy.deepcopy(method)
    optimizer = build_optimizer(
        Optim(lr=10.0, weight_decay=0.0),
        method.named_parameters(),
        batch_size=8,
        backbone_lr=factor,
    )
    before = {name: value.clone() for name, value in method.state_dict().items()}
    views = [torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(i)) for i in (0, 1)]
    step = method(views, Moment(total_steps=10))
    step.loss.backward()
    optimizer.step()
    method.after_step(Moment(total_steps=10), step)
    return {name: value - before[name] for name, value in method.state_dict().items()}


def test_the_first_stages_stay_as_they_are_and_the_factor_scales_the_others(photos, file):
    recipe, start = build(photos, str(file), "moco", ("--start.freeze", "1"))
    method = build_method(recipe, CPU, start=start.weights)
    slow, fast = one_step(method, 0.25), one_step(method, 1.0)
    for name, moved in fast.items():
        if name.startswith(("student.backbone.", "teacher.net.backbone.")):
            frozen = name.split("backbone.")[1].startswith(("conv1", "bn1", "layer1"))
            assert bool((moved == 0).all()) == frozen, name
        if name.startswith("student.") and not name.endswith(("_mean", "_var", "_tracked")):
            factor = 0.25 if ".backbone." in name else 1.0
            torch.testing.assert_close(slow[name], factor * moved, rtol=1e-3, atol=1e-7)


def test_a_run_keeps_its_start_and_is_repeated_to_the_bit(photos, file, weights, tmp_path):
    (file.parent / "README.md").write_text("---\ntags: [a]\nlicense: cc-by-4.0\n---\n# Encoder\n")
    run = api.pretrain(
        photos,
        init=str(file),
        stem="half",
        epochs=1,
        batch_size=8,
        device="cpu",
        out=tmp_path / "run",
        settings=["--log-every", "1"],
    )
    start = api.load_recipe(run).start
    assert (start.name, start.license, start.lr_factor) == (str(file), "cc-by-4.0", 0.1)
    kept = init_weights.read_start(run, start)
    assert all(torch.equal(kept[name], value) for name, value in weights.items())
    assert "the start encoder" in run.result("verdict")["sentence"]
    # The file of --init may be gone by now.
    moved = file.rename(file.with_name("gone.safetensors"))
    found = api.reproduce(run, device="cpu", quiet=True)
    moved.rename(file)
    assert found["outcome"] == "bit-equal"
    other = tmp_path / "other.safetensors"
    run.start_weights.rename(other)
    with pytest.raises(UserError, match=r"start\.safetensors holds .* --init"):
        init_weights.read_start(run, start)
    run.start_weights.write_bytes(other.read_bytes()[:-4] + bytes(4))
    with pytest.raises(UserError, match="is not the file that this run started from"):
        init_weights.read_start(run, start)
    with pytest.raises(UserError, match="init is None in the command"):
        api.pretrain(photos, out=run.path, resume=True, device="cpu", epochs=1, batch_size=8)


REFUSED = {
    "has 3 stages .* Use 1 to 2": {"settings": ("--start.freeze", "3")},
    r"backbone\.name resnet8_narrow and the recipe resnet18": {
        "settings": ("--backbone.name", "resnet18", "--backbone.stem", "half")
    },
    r"backbone\.stem half and the recipe lowres": {"settings": ("--backbone.stem", "lowres")},
    r"method\.norm bn and the recipe ln": {"settings": ("--method.norm", "ln")},
    "There is no file or run folder": {"init": "nowhere", "stem": None},
    "--stem needs --init": {"init": None},
    r"Name an encoder with --init": {
        "init": None,
        "stem": None,
        "settings": ("--start.freeze", "1"),
    },
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_start_that_does_not_fit_is_refused_in_a_sentence(sentence, photos, file):
    with pytest.raises(UserError, match=sentence):
        build(photos, **{"file": str(file)} | REFUSED[sentence])


def test_weights_that_are_not_finite_are_refused(photos, weights, tmp_path):
    path = tmp_path / "broken.safetensors"
    broken = weights | {"layer1.0.bn1.bias": torch.full((16,), float("nan"))}
    safetensors.torch.save_file(broken, path)
    with pytest.raises(UserError, match="NaN or infinity"):
        build(photos, str(path))


@pytest.mark.slow
def test_images_are_normalized_as_by_the_run_that_is_started_from(photos, file, tmp_path):
    """Also by a named recipe, whose own statistics differ."""
    settings = ["--views.0.mean", "0.1", "0.2", "0.3", "--log-every", "1"]
    first = {"epochs": 1, "batch_size": 8, "device": "cpu", "settings": settings}
    run = api.pretrain(photos, method="simclr", out=tmp_path / "first", **first)
    recipe, start = build(photos, str(run.path), None, stem=None, recipe="simclr.shapes", epochs=4)
    assert recipe.views[0].mean == recipe.views[1].mean == (0.1, 0.2, 0.3)
    assert recipe.backbone.name == start.backbone.name
    assert "trained from random" in start.summary
