"""A step asks the device for nothing, and one without a finite gradient leaves no trace."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from selfsight.backbones import BackboneConfig
from selfsight.methods import METHODS, DataFacts
from selfsight.optim import Optim, Schedule, build_optimizer
from selfsight.recipe import Recipe
from selfsight.train import metrics, step
from selfsight.train.grad_scaler import Guard, take
from selfsight.train.online_eval import Probe
from selfsight.train.pretrain import build
from selfsight.train.state import State
from selfsight.train.step import Batch, Stepper
from selfsight.views import View
from tests.methods.small import SMALL

CPU = torch.device("cpu")
BATCH, SIZE, IMAGES, CLASSES = 8, 16, 40, 5


def made(name, **optim):
    config = METHODS[name](**SMALL[name])
    recipe = Recipe(
        method=config,
        views=(View(size=SIZE),) * config.num_views,
        optim=Optim(**{"lr": 0.1, "schedule": Schedule(), **optim}),
        backbone=BackboneConfig(name="resnet8_narrow", image_size=SIZE),
        epochs=2,
        batch_size=BATCH,
    )
    method = build(recipe, CPU, DataFacts(IMAGES, CLASSES))
    optimizer = build_optimizer(recipe.optim, method.named_parameters(), batch_size=BATCH)
    probe = Probe(method.student.backbone.dim, CLASSES, CPU)
    state = State(method, optimizer, Guard(CPU, scaled=False), probe)
    return state, Stepper(state, recipe, steps_per_epoch=IMAGES // BATCH, device=CPU)


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
def test_a_step_reads_nothing_back(name, monkeypatch):
    """Every method, from views to the moved teacher; the probe's Adam reads its step on a CPU."""
    monkeypatch.setattr(step, "take", take_as_on_a_gpu)
    state, stepper = made(name)
    state.probe = None
    stepper(batch(state))  # what is made at the first step may be
    with Asked() as asked:
        stepper(batch(state, 1))
    assert asked.count == 0


def take_as_on_a_gpu(optimizer, lost):
    optimizer.step()


@pytest.mark.parametrize("name", ["moco", "byol", "instdisc", "swav"])
def test_a_step_without_a_finite_gradient_is_not_taken(name):
    state, stepper = made(name)
    stepper(batch(state))
    before = {k: v.clone() for k, v in state.method.state_dict().items()}
    stepper(batch(state, 1, value=float("nan")))
    after = state.method.state_dict()
    assert float(state.guard.streak) == float(state.guard.total) == 1
    assert all(bool(v.isfinite().all()) for v in after.values())
    trained = {name for name, p in state.method.named_parameters() if p.requires_grad}
    for key in trained - {"prototypes.weight"}:
        assert torch.equal(before[key], after[key]), key
    stepper(batch(state, 2))
    assert float(state.guard.streak) == 0 and float(state.guard.total) == 1
    changed = [k for k in trained if not torch.equal(before[k], state.method.state_dict()[k])]
    assert changed


def test_scaled_gradients_come_back_to_their_size_and_an_overflow_halves_the_scale():
    mine = Guard(CPU, scaled=True)
    scale = float(mine.scale)
    grads = [torch.tensor([2.0, -4.0]) * scale]
    assert not mine.check(grads)
    torch.testing.assert_close(grads[0], torch.tensor([2.0, -4.0]))
    assert mine.check([torch.tensor([torch.inf])])
    assert float(mine.scale) == scale / 2


def test_a_lost_step_moves_no_optimizer():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.ones(3)
    take(optimizer, torch.tensor(1.0))
    assert torch.equal(weight.detach(), torch.ones(3))
    take(optimizer, torch.tensor(0.0))
    assert torch.equal(weight.detach(), torch.zeros(3))


def test_a_rate_counts_what_a_gpu_has_yet_to_do(monkeypatch):
    """Four steps are handed over in no time, and the device takes two seconds for them."""
    state, take_step = made("simclr")
    given = batch(state)._replace(waited=0.25)
    last = take_step(given)
    now = [100.0]

    def done(value):  # reading the loss waits for the device
        now[0] += 2.0
        return value

    monkeypatch.setattr(metrics.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(metrics.dist, "mean", done)
    seen = metrics.Watch(take_step.recipe, IMAGES // BATCH)
    for _ in range(4):
        seen.see(given)
    record = seen.record(state, last)
    assert record["images_per_second"] == 4 * BATCH / 2.0
    assert record["data_wait"] == 0.5
