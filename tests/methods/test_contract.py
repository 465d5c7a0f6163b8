"""What every method must do. A new method joins by its line in METHODS."""

import copy
from dataclasses import replace

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.parallel import DistributedDataParallel

from selfsight.compile_options import COMPILE_OPTIONS
from selfsight.losses import compiled_losses
from selfsight.methods import BASELINES, METHODS
from selfsight.train.compile import compile_networks
from tests.methods.small import make, moment, views

ALL = sorted(METHODS | BASELINES)


@pytest.fixture(params=ALL)
def method(request):
    return make(request.param)


def one_step(method, step=0):
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
    method(views(method, step), moment(step)).loss.backward()
    optimizer.step()


def test_loss_is_a_finite_scalar_and_features_are_the_first_views(method):
    x = views(method)
    step = method(x, moment())
    assert step.loss.shape == () and step.loss.isfinite()
    assert step.features.shape == (len(x[0]), method.student.backbone.dim)
    # In evaluation mode, since a method may encode several views as one batch.
    whose = method.teacher.net if method.features_of == "teacher" else method.student
    torch.testing.assert_close(method.eval()(x, moment()).features, whose.backbone(x[0]))


def test_gradient_reaches_every_trained_parameter_and_no_teacher(method):
    method(views(method), moment()).loss.backward()
    reached = {n for n, p in method.named_parameters() if p.grad is not None and p.grad.any()}
    assert reached == {n for n, _ in method.named_parameters() if not n.startswith("teacher.")}
    assert reached == {n for n, p in method.named_parameters() if p.requires_grad}


def test_teacher_moves_only_after_the_step_and_only_its_parameters(method):
    if not hasattr(method, "teacher"):
        assert all(p.requires_grad for p in method.parameters())
        return
    before = copy.deepcopy(list(method.teacher.parameters()))
    one_step(method)
    assert all(torch.equal(a, b) for a, b in zip(before, method.teacher.parameters(), strict=True))
    buffers = copy.deepcopy(list(method.teacher.buffers()))
    method.after_step(moment())
    after = list(method.teacher.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(buffers, method.teacher.buffers(), strict=True))


def test_the_teacher_runs_in_training_mode_and_keeps_its_own_statistics(method):
    if not hasattr(method, "teacher"):
        assert method.training
        return
    before = [b.clone() for b in method.teacher.buffers()]
    method(views(method), moment())
    assert any(not torch.equal(a, b) for a, b in zip(before, method.teacher.buffers(), strict=True))


def test_the_same_moment_gives_the_same_loss(method):
    a, b = copy.deepcopy(method), copy.deepcopy(method)
    torch.manual_seed(1)
    first = a(views(method), moment()).loss
    torch.manual_seed(2)  # a method may not read the global random state
    assert torch.equal(first, b(views(method), moment()).loss)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_no_label_is_needed_or_looked_at(name):
    a, b = make(name), make(name)
    assert not a.config.needs_labels
    loss = a(views(a), replace(moment(), labels=None)).loss
    assert torch.equal(loss, b(views(b), moment()).loss)


def test_state_dict_holds_all_that_a_step_depends_on(method):
    one_step(method)
    method.after_step(moment())
    other = copy.deepcopy(method)
    for tensor in other.state_dict().values():
        tensor.zero_()
    other.load_state_dict(method.state_dict())
    assert torch.equal(
        method(views(method, 1), moment(1)).loss, other(views(method, 1), moment(1)).loss
    )


@pytest.mark.parametrize("name", ALL)
def test_bf16_is_close_to_float32(name):
    exact, low = make(name), make(name)
    with torch.autocast("cpu", torch.bfloat16):
        rough = low(views(low), moment()).loss
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact(views(exact), moment()).loss, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_collapsed_features_lose_at_chance(name):
    """With one embedding for all images a contrastive loss is the guess that is documented."""
    method = make(name)
    chance = method.config.chance_loss(8)
    if chance is None:
        assert name in ("barlow_twins", "byol", "msbreg", "simsiam", "vicreg")
        return
    for p in method.student.parameters():
        p.data.zero_()
    for p in method.parameters():
        p.data.zero_()
    if hasattr(method, "queue"):
        method.queue.keys.zero_()
    assert method(views(method), moment()).loss.item() == pytest.approx(chance, rel=1e-5)


def traced(name):
    """Losses of the eager and of the traced method, and graphs after one and after four steps.

    Tracing stops at a graph break.
    """
    method = make(name)
    other = copy.deepcopy(method)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    whole = torch.compile(method, fullgraph=True, backend=counter)
    losses, graphs = [], []
    for step in range(4):
        found = whole(views(method, step), moment(step)).loss.detach()
        expected = other(views(other, step), moment(step)).loss.detach()
        losses.append((found, expected))
        graphs.append(counter.frame_count)
    return losses, graphs


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_it_traces_without_a_graph_break_on_two_processes(two_processes, name):
    """And what changes from step to step makes no new graph."""
    for losses, graphs in two_processes(traced, name):
        for found, expected in losses:
            torch.testing.assert_close(found, expected)
        assert graphs == [graphs[0]] * 4


def trained(name):
    """Graphs after each step of a method compiled as training does, and what broke them."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    method, graphs = make(name), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(COMPILE_OPTIONS, "backend", "aot_eager")
        patch.delitem(COMPILE_OPTIONS, "options")
        compile_networks(method)
        shared = DistributedDataParallel(method, broadcast_buffers=False)
        for step in range(4):
            with compiled_losses():
                loss = shared(views(method, step), moment(step)).loss
            loss.backward()
            method.after_step(moment(step))
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    return graphs, dict(torch._dynamo.utils.counters["graph_break"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fast_moco", "moco", "swav"])
def test_compiled_networks_make_the_same_graphs_on_two_processes(two_processes, name):
    """As DistributedDataParallel runs them, with patches, a queue and prototypes."""
    for graphs, broken in two_processes(trained, name):
        assert graphs == [graphs[0]] * 4 and graphs[0] > 2
        assert not broken
