"""A step asks the device for nothing, and one without a finite gradient leaves no trace."""

import copy
import math
import re

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from selfsight.backbones import BackboneConfig
from selfsight.methods import METHODS, DataInfo
from selfsight.optim import Optim, Schedule, build_optimizer
from selfsight.recipe import Recipe
from selfsight.train import log_records, step
from selfsight.train.cuda_graph import StepRunner
from selfsight.train.grad_scaler import INITIAL_SCALE, GradScaler
from selfsight.train.init_weights import build_method
from selfsight.train.online_eval import OnlineProbe, count_dips
from selfsight.train.skipped_steps import STATISTICS, step_if_finite
from selfsight.train.step import Batch
from selfsight.train.training_state import State
from selfsight.views import View, apply_views
from tests.methods.small import SMALL
from tests.views.ragged import ragged

CPU = torch.device("cpu")
BATCH, SIZE, IMAGES, CLASSES = 8, 16, 40, 5


def made(name, /, log_gradients=False, **optim):
    config = METHODS[name](**SMALL[name])
    recipe = Recipe(
        method=config,
        views=(View(size=SIZE),) * config.num_views,
        optim=Optim(**{"lr": 0.1, "schedule": Schedule(), **optim}),
        backbone=BackboneConfig(name="resnet8_narrow", image_size=SIZE),
        epochs=2,
        batch_size=BATCH,
        log_gradients=log_gradients,
    )
    method = build_method(recipe, CPU, DataInfo(IMAGES, CLASSES))
    optimizer = build_optimizer(recipe.optim, method.named_parameters(), batch_size=BATCH)
    probe = OnlineProbe(method.student.backbone.dim, CLASSES, CPU)
    state = State(method, optimizer, GradScaler(CPU, enabled=False), probe)
    return state, StepRunner(state, recipe, steps_per_epoch=IMAGES // BATCH, device=CPU)


def batch(state, seed=0, value=None):
    torch.manual_seed(seed)
    count = state.method.config.num_views
    views = [torch.randn(BATCH, 3, SIZE, SIZE) for _ in range(count)]
    if value is not None:
        views[0][3, 0, 2, 2] = value
    return Batch(views, torch.arange(BATCH) % CLASSES, torch.arange(BATCH))


VALUES = {  # operations of which a host must know values of the tensors
    "_local_scalar_dense",
    "_unique2",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "repeat_interleave.Tensor",
    "unique_consecutive",
    "unique_dim",
}
MOVES = ("cpu", "numpy", "tolist")  # past the operations


class Asked(TorchDispatchMode):
    """Counts how often a value is read from a tensor: on a GPU each would stop the host."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self.patch = pytest.MonkeyPatch()

    def __enter__(self):
        for name in MOVES:
            self.patch.setattr(torch.Tensor, name, self.counting(getattr(torch.Tensor, name)))
        return super().__enter__()

    def __exit__(self, *error):
        self.patch.undo()
        return super().__exit__(*error)

    def counting(self, move):
        def counted(*words, **more):
            self.count += 1
            return move(*words, **more)

        return counted

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.removesuffix(".default")
        self.count += name in VALUES or name.partition(".")[0] in VALUES
        if name.startswith(("index.", "index_put")):  # by a mask, its number of rows is a value
            self.count += any(i is not None and i.dtype == torch.bool for i in args[1])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[x > 1],
        lambda x: x.masked_select(x > 1),
        lambda x: x.unique(),
        lambda x: x.repeat_interleave(x.long()),
        lambda x: x.nonzero(),
        lambda x: bool(x[0] > 1),
        lambda x: x[0].item(),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x.cpu(),
    ],
)
def test_every_way_of_reading_is_counted(read):
    x = torch.tensor([1.0, 2.0])
    with Asked() as asked:
        read(x)
    assert asked.count > 0
    with Asked() as asked:
        x[torch.tensor([1, 0])].where(x > 1, 0).repeat_interleave(2)
    assert asked.count == 0


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_step_reads_nothing_back_and_an_infinite_gradient_changes_only_its_number(
    name, monkeypatch
):
    """Every method, from views to the moved teacher; the probe's Adam reads its step on a CPU."""
    state, stepper = made(name, log_gradients=True)
    stepper(batch(state))  # what is made at the first step may be
    probe, state.probe = state.probe, None
    with monkeypatch.context() as patch, Asked() as asked:
        patch.setattr(step, "step_if_finite", step_as_on_a_gpu)
        stepper(batch(state, 1))
    assert asked.count == 0
    state.probe = probe
    before = copy.deepcopy(state.state_dict())
    weight = next(state.method.student.parameters())
    handle = weight.register_hook(lambda grad: torch.full_like(grad, torch.inf))
    stepper(batch(state, 2))
    handle.remove()
    after = state.state_dict()
    assert after["step"] == before["step"] + 1
    for key, value in before["method"].items():
        assert torch.equal(value, after["method"][key]), key
    buffers = [tree_leaves(saved["optimizer"]["state"]) for saved in (before, after)]
    assert all(torch.equal(a, b) for a, b in zip(*buffers, strict=True))
    layer = before["probe"]["layer"]
    assert all(torch.equal(v, after["probe"]["layer"][k]) for k, v in layer.items())


def test_gradients_are_clipped_to_the_norm_of_the_recipe_after_they_are_logged():
    state, stepper = made("simclr", log_gradients=True, clip=0.01)
    logs = stepper(batch(state)).logs
    logged = [float(norm) for name, norm in logs.items() if name.startswith("grad_norm.")]
    clipped = [float(p.grad.norm()) for p in state.method.parameters() if p.grad is not None]
    assert math.hypot(*clipped) == pytest.approx(0.01, rel=1e-3) and math.hypot(*logged) > 0.02


def test_a_method_gets_the_views_of_its_epoch_where_training_stands_and_no_labels_in_vain(
    monkeypatch,
):
    """Here the step computes the views itself, as it does of images that are stored on a GPU."""
    state, stepper = made("simclr")
    recipe, seen = stepper.recipe, []
    forward = type(state.method).forward

    def forward_and_tell(method, views, at):
        seen.append((views, at))
        return forward(method, views, at)

    monkeypatch.setattr(type(state.method), "forward", forward_and_tell)
    images = ragged(((24, 30),) * BATCH)
    labels, index = torch.arange(BATCH) % CLASSES, torch.arange(BATCH)
    per_epoch = IMAGES // BATCH
    for _ in range(per_epoch + 1):
        stepper(Batch([], labels, index, images=images))
    for number, epoch in ((0, 0), (1, 0), (per_epoch, 1)):
        views, at = seen[number]
        assert (int(at.step), at.total_steps, at.steps_per_epoch) == (number, 10, 5)
        assert at.labels is None  # SimCLR needs none
        expected = apply_views(recipe.views, images, index, seed=recipe.seed, epoch=epoch)
        assert all(map(torch.equal, views, expected))


def test_logged_gradient_norms_are_those_of_each_layer_and_change_no_weight():
    (state, stepper), (plain, plain_stepper) = made("mocov3", log_gradients=True), made("mocov3")
    logged = stepper(batch(state)).logs
    norms = {k.removeprefix("grad_norm."): v for k, v in logged.items() if k != "probe"}
    assert list(norms) == [
        *("conv1", "bn1", "layer1.0", "layer2.0", "layer3.0"),
        *("projector.0", "projector.1", "projector.3", "predictor.0", "predictor.1", "predictor.3"),
    ]
    for layer, norm in norms.items():
        inside = re.compile(rf"(student\.)?(backbone\.)?{re.escape(layer)}\.")
        squares = [
            (p.grad.double() ** 2).sum()
            for name, p in state.method.named_parameters()
            if inside.match(name) and p.grad is not None
        ]
        assert norm.item() == pytest.approx(math.sqrt(sum(squares)), rel=1e-5), layer
    assert set(plain_stepper(batch(plain)).logs) == {"probe"}
    for key, value in plain.method.state_dict().items():
        assert torch.equal(value, state.method.state_dict()[key]), key


@pytest.mark.parametrize(
    ("accuracies", "dips"),
    [
        ([], 0),
        ([0.3], 0),
        ([0.35, 0.34, 0.36], 1),  # one point, whatever its rounding
        ([0.35, 0.341, 0.36], 0),
        ([0.5, 0.4, 0.45, 0.5, 0.6, 0.589], 3),  # until it is back; below the best, not the last
    ],
)
def test_a_dip_is_a_measurement_a_point_below_the_best_before_it(accuracies, dips):
    assert count_dips(accuracies) == dips


def step_as_on_a_gpu(optimizer, found_inf):
    optimizer.step()


@pytest.mark.parametrize("name", ["moco", "byol", "instdisc", "swav"])
def test_a_step_without_a_finite_gradient_is_not_taken(name):
    state, stepper = made(name)
    stepper(batch(state))
    before = {k: v.clone() for k, v in state.method.state_dict().items()}
    stepper(batch(state, 1, value=float("nan")))
    after = state.method.state_dict()
    assert float(state.scaler.skipped_in_a_row) == float(state.scaler.skipped_steps) == 1
    assert all(bool(v.isfinite().all()) for v in after.values())
    trained = {name for name, p in state.method.named_parameters() if p.requires_grad}
    tracked = {k for k in after if k.endswith(STATISTICS)}
    for key in trained - {"prototypes.weight"} | tracked:
        assert torch.equal(before[key], after[key]), key
    stepper(batch(state, 2))
    assert float(state.scaler.skipped_in_a_row) == 0
    assert float(state.scaler.skipped_steps) == 1
    changed = [k for k in trained if not torch.equal(before[k], state.method.state_dict()[k])]
    assert changed


def test_scaled_gradients_come_back_to_their_size_and_an_overflow_halves_the_scale():
    mine = GradScaler(CPU, enabled=True)
    scale = float(mine.scale)
    grads = [torch.tensor([2.0, -4.0]) * scale]
    assert not mine.unscale(grads, torch.tensor(0))
    torch.testing.assert_close(grads[0], torch.tensor([2.0, -4.0]))
    assert mine.unscale([torch.tensor([torch.inf])], torch.tensor(1))
    assert float(mine.scale) == scale / 2
    assert mine.read_first_skipped() == 2  # counted from 1
    assert mine.read_first_skipped() == 0


@pytest.mark.parametrize("old", [False, True])
def test_the_scale_of_the_loss_stays_with_runs_that_scale_it(old):
    scaled, plain = GradScaler(CPU, enabled=True), GradScaler(CPU, enabled=False)
    scaled.scale.fill_(512.0)
    scaled.skipped_steps.fill_(3)
    saved, unscaled = scaled.state_dict(), plain.state_dict()
    if old:  # a checkpoint from before it said so
        del saved["enabled"], unscaled["enabled"]
    plain.load_state_dict(saved)
    assert (float(plain.scale), float(plain.skipped_steps)) == (1.0, 3.0)
    other = GradScaler(CPU, enabled=True)
    other.load_state_dict(unscaled)
    assert float(other.scale) == INITIAL_SCALE
    other.load_state_dict(saved)
    assert float(other.scale) == 512.0


def test_a_skipped_step_moves_no_optimizer():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.ones(3)
    step_if_finite(optimizer, torch.tensor(1.0))
    assert torch.equal(weight.detach(), torch.ones(3))
    step_if_finite(optimizer, torch.tensor(0.0))
    assert torch.equal(weight.detach(), torch.zeros(3))


def test_a_rate_counts_what_a_gpu_has_yet_to_do(monkeypatch):
    """Four steps are handed over in no time, and the device takes two seconds for them."""
    state, take_step = made("simclr")
    given = batch(state)._replace(data_wait=0.25)
    last = take_step(given)
    now = [100.0]

    def done(value):  # reading the loss waits for the device
        now[0] += 2.0
        return value

    monkeypatch.setattr(log_records.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(log_records.dist, "mean", done)
    seen = log_records.Metrics(take_step.recipe, IMAGES // BATCH)
    for _ in range(4):
        seen.count(given)
    record = seen.record(state, last)
    assert record["images_per_second"] == 4 * BATCH / 2.0
    assert record["data_wait"] == 0.5
