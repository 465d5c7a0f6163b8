"""On a GPU: a compiled method is the eager one, and a recorded step the plain one."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.utils._pytree import tree_leaves

from selfsight import api
from selfsight.backbones import BackboneConfig
from selfsight.bench.first_step import measure_first_step
from selfsight.data import CachedImages
from selfsight.data.loader import Loader
from selfsight.methods import METHODS, DataInfo, Moment
from selfsight.optim import OPTIMS, Optim, Schedule, build_optimizer
from selfsight.recipe import Recipe
from selfsight.recipes import auto_recipe
from selfsight.train import checkpoint
from selfsight.train.cuda_graph import CHOICE, StepRunner
from selfsight.train.cudnn_and_determinism import configure_torch
from selfsight.train.grad_scaler import GradScaler
from selfsight.train.init_weights import build_method
from selfsight.train.loop import load_batches
from selfsight.train.training_state import State
from selfsight.views import View
from tests.folders import images as write_images
from tests.methods.small import SMALL
from tests.train.test_frozen_parameters import LAYERS
from tests.train.test_pretrain import SLIM, flag, killed, same

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # of torch's own, while it compiles
]

BATCH, SIZE, COUNT = 8, 32, 64
STEPS = CHOICE + 5  # some after plain or graph is chosen


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_compiled_method_is_the_eager_one(name):
    """In a process of its own: the checks of shapes that tests run under cannot be compiled."""
    words = [sys.executable, "-m", "tests.train.compare", name]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]


def test_the_first_run_of_a_network_trains_while_another_process_compiles():
    found = measure_first_step(
        "mocov3.cifar10_r18_100ep",
        "shapes",
        "cuda",
        batch_size=64,
        flags=("--backbone.name", "resnet8_narrow"),
        seconds=0.1,
    )
    assert "Numbers depend on that step" in found["cold"]["compiled"]
    assert found["warm"]["compiled"] == ""


def build(name, optim, *, recorded, saved=None, **changes):
    """A state, the runner of its steps, and batches of images that lie on the GPU.

    The state is the initial one, or the one that was `saved`.
    """
    config = METHODS[name](**SMALL[name])
    recipe = Recipe(
        method=config,
        views=(View(size=SIZE),) * config.num_views,
        optim=optim,
        backbone=BackboneConfig(name="resnet8_narrow", image_size=SIZE),
        epochs=10,
        batch_size=BATCH,
        compile=False,
        repeatable=True,
    )
    recipe = replace(recipe, **changes)
    device = torch.device("cuda", 0)
    made = torch.Generator().manual_seed(0)
    flat = torch.randint(0, 256, (COUNT * 3 * SIZE * SIZE,), generator=made, dtype=torch.uint8)
    side = torch.full((COUNT,), SIZE)
    images = CachedImages(flat, side, side, channels=3, names=[str(i) for i in range(COUNT)])
    method = build_method(recipe, device, DataInfo(COUNT, 2))
    optimizer = build_optimizer(recipe.optim, method.named_parameters(), batch_size=BATCH)
    state = State(method, optimizer, GradScaler(device, enabled=False))
    if saved is not None:
        state.load_state_dict(saved)
    loader = Loader(images.to(device), batch_size=BATCH, seed=0, device=device)
    configure_torch(recipe, device)
    stepper = StepRunner(state, recipe, steps_per_epoch=COUNT // BATCH, device=device)
    if not recorded:
        stepper.stream = None
    return state, stepper, load_batches(loader, recipe, state.step)


def steps(name, optim, *, recorded):
    """Losses of some steps, and the runner that ran them."""
    _, stepper, batches = build(name, optim, recorded=recorded)
    losses = [stepper(next(batches)).loss.clone() for _ in range(STEPS)]
    return torch.stack(losses), stepper


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_step_with_an_infinite_gradient_changes_only_batch_norm_statistics(name, recorded):
    optim = Optim(lr=0.05, schedule=Schedule(warmup_epochs=1))
    state, stepper, batches = build(name, optim, recorded=recorded)
    factor = torch.ones((), device="cuda")  # a recorded step reads its value at each replay
    next(state.method.student.parameters()).register_hook(lambda grad: grad * factor)
    for _ in range(STEPS):
        stepper(next(batches))
    before = {k: v.clone() for k, v in state.method.state_dict().items()}
    momenta = [v.clone() for v in tree_leaves(state.optimizer.state_dict()["state"])]
    factor.fill_(torch.inf)
    stepper(next(batches))
    assert int(state.scaler.skipped_steps) == 1
    for key, value in state.method.state_dict().items():
        if not key.endswith(("running_mean", "running_var", "num_batches_tracked")):
            assert torch.equal(before[key], value), key
    after = tree_leaves(state.optimizer.state_dict()["state"])
    assert all(torch.equal(a, b) for a, b in zip(momenta, after, strict=True))
    factor.fill_(1.0)
    stepper(next(batches))
    assert any(not torch.equal(before[k], v) for k, v in state.method.state_dict().items())
    assert int(state.scaler.skipped_steps) == 1


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_recorded_step_is_the_plain_one(name):
    """To the last bit: a graph replays the same kernels; the rate changes at every step."""
    optim = Optim(lr=0.05, schedule=Schedule(warmup_epochs=1))
    plain, _ = steps(name, optim, recorded=False)
    replayed, stepper = steps(name, optim, recorded=True)
    assert set(stepper.milliseconds) == {"plain", "graph"}
    assert torch.equal(plain, replayed)


@pytest.mark.parametrize("kind", ["adamw", "lars", "lamb"])
def test_every_optimizer_can_be_recorded(kind):
    optim = replace(OPTIMS[kind], schedule=Schedule(warmup_epochs=1))
    plain, _ = steps("mocov3", optim, recorded=False)
    replayed, _ = steps("mocov3", optim, recorded=True)
    assert torch.equal(plain, replayed)


FROZEN = CHOICE  # steps, so that some replays are frozen; an epoch has eight
FREEZE = {
    "dino": {"freeze_epochs": FROZEN * BATCH // COUNT, "free_scale": True},
    "swav": {"freeze_steps": FROZEN},
}


@pytest.mark.parametrize("kind", sorted(OPTIMS))
@pytest.mark.parametrize("name", sorted(FREEZE))
def test_a_recorded_step_leaves_a_frozen_layer_as_it_was(name, kind, monkeypatch):
    monkeypatch.setitem(SMALL, name, SMALL[name] | FREEZE[name])
    schedule = Schedule(warmup_epochs=1)
    optim = Optim(name=kind, lr=0.01, weight_decay=0.1, scale="none", schedule=schedule)
    found = []
    for recorded in (False, True):
        state, stepper, batches = build(name, optim, recorded=recorded)
        layers = [state.method.get_parameter(layer) for layer in LAYERS[name]]
        start = [layer.detach().clone() for layer in layers]
        for _ in range(FROZEN):
            stepper(next(batches))
        for layer, old in zip(layers, start, strict=True):
            torch.testing.assert_close(layer, old, rtol=1e-5, atol=0)  # SwAV's are rescaled
        for layer in layers:
            assert not any(bool(x.any()) for x in tree_leaves(state.optimizer.state[layer]))
        for _ in range(STEPS - FROZEN):
            stepper(next(batches))
        assert not any(torch.equal(layer, old) for layer, old in zip(layers, start, strict=True))
        found.append([layer.detach().clone() for layer in layers])
    assert set(stepper.milliseconds) == {"plain", "graph"}
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize(
    ("name", "kind"), [("mocov3", "adamw"), ("moco", "sgd"), ("swav", "lars"), ("dino", "lamb")]
)
def test_steps_after_a_checkpoint_have_the_bits_of_those_without(name, kind, tmp_path):
    """Before it and after it steps are recorded."""
    optim = replace(OPTIMS[kind], lr=0.01, schedule=Schedule(warmup_epochs=1))
    state, stepper, batches = build(name, optim, recorded=True)
    for _ in range(STEPS):
        stepper(next(batches))
    torch.save(state.state_dict(), tmp_path / "state.pt")
    for _ in range(STEPS):
        stepper(next(batches))
    saved = torch.load(tmp_path / "state.pt", map_location="cuda", weights_only=True)
    other, stepper, batches = build(name, optim, recorded=True, saved=saved)
    for _ in range(STEPS):
        stepper(next(batches))
    assert state.step == other.step == 2 * STEPS
    assert same(state.state_dict(), other.state_dict())


@pytest.mark.parametrize("compiled", [False, True])
def test_a_repeatable_run_that_is_killed_and_resumed_has_the_bits_of_one_that_is_not(
    compiled, tmp_path
):
    photos = write_images(tmp_path / "photos", count=18)
    small = [word for key, v in SMALL["moco"].items() for word in flag(f"method.{key}", v)]
    compiling = "--compile" if compiled else "--no-compile"
    settings = [*small, *SLIM, "--repeatable", compiling]

    def pretrain(out):  # two steps an epoch
        command = {"method": "moco", "epochs": 12, "batch_size": 8, "labels": True}
        command |= {"device": "cuda", "resume": True, "settings": settings}
        return api.pretrain(photos, out=tmp_path / out, **command)

    whole = pretrain("whole")
    with killed(after=CHOICE + 3):
        pretrain("cut")
    assert same(checkpoint.load(whole), checkpoint.load(pretrain("cut")))


def test_an_automatic_run_is_as_long_as_its_measured_speed_allows(tmp_path, monkeypatch):
    monkeypatch.setattr(auto_recipe, "GPU_EPOCHS", (2, 10**6))
    photos = write_images(tmp_path / "photos")
    settings = ["--backbone.name", "resnet8_narrow"]
    run = api.pretrain(photos, device="cuda", out=tmp_path / "run", settings=settings)
    recipe = run.saved_recipe()
    assert "at the measured" in recipe["reasons"]["epochs"]
    assert recipe["epochs"] == 2 == run.records()[-1]["epoch"] and not recipe["compile"]


def test_gradient_norms_and_views_outside_the_kernels_can_be_recorded():
    optim = Optim(lr=0.05, schedule=Schedule(warmup_epochs=1))
    others = dict(second_crop=0.5, rotate=0.5, cutout=0.5, sobel=0.5, noise=0.5)
    views = (View(size=SIZE, crop="center"), View(size=SIZE, crop="shared", **others))
    logs = []
    for recorded in (False, True):
        changes = {"views": views, "log_gradients": True}
        _, stepper, batches = build("mocov3", optim, recorded=recorded, **changes)
        results = (
            {**r.logs, "loss": r.loss} for r in (stepper(next(batches)) for _ in range(STEPS))
        )
        logs.append([{key: value.clone() for key, value in result.items()} for result in results])
    assert "grad_norm.conv1" in logs[0][0]
    for plain, replayed in zip(*logs, strict=True):
        assert plain.keys() == replayed.keys()
        assert all(torch.equal(plain[key], replayed[key]) for key in plain)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_runs_by_hand_with_a_moment_of_one_number(name):
    method = METHODS[name](**SMALL[name])
    method = method.build(BackboneConfig(name="resnet8_narrow").build(), DataInfo(COUNT, 2)).cuda()
    index = torch.arange(BATCH, device="cuda") if name == "instdisc" else None
    at = Moment(step=3, index=index)
    views = [
        torch.randn(BATCH, 3, SIZE, SIZE, device="cuda") for _ in range(method.config.num_views)
    ]
    result = method(views, at)
    result.loss.backward()
    method.after_step(at, result._replace(skipped=torch.zeros((), device="cuda")))
    assert result.loss.isfinite()
