"""What every method must do. A new method joins by its line in METHODS."""

import copy
import math
from dataclasses import fields, replace

import jaxtyping
import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.parallel import DistributedDataParallel

from selfsight.compile_options import COMPILE_OPTIONS
from selfsight.errors import UserError
from selfsight.losses import dtype
from selfsight.methods import BASELINES, METHODS, Moment
from selfsight.methods.base import RANGES
from selfsight.nn import Backbone
from selfsight.train.compile import compile_networks
from tests.methods.small import SMALL, Tiny, make, moment, views

ALL = sorted(METHODS | BASELINES)
WITH_TEACHER = ["byol", "fast_moco", "jcl", "moco", "mocov3", "msbreg", "simo"]
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@pytest.fixture(params=ALL)
def method(request):
    return make(request.param)


def one_step(method, step=0):
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
    result = method(views(method, step), moment(step))
    result.loss.backward()
    optimizer.step()
    return result


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


@pytest.mark.parametrize("name", WITH_TEACHER)
def test_teacher_moves_only_after_the_step_and_only_its_parameters(name):
    method = make(name)
    before = copy.deepcopy(list(method.teacher.parameters()))
    result = one_step(method)
    assert all(torch.equal(a, b) for a, b in zip(before, method.teacher.parameters(), strict=True))
    buffers = copy.deepcopy(list(method.teacher.buffers()))
    method.after_step(moment(), result)
    after = list(method.teacher.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(buffers, method.teacher.buffers(), strict=True))


@pytest.mark.parametrize("name", WITH_TEACHER)
def test_the_teacher_runs_in_training_mode_and_keeps_its_own_statistics(name):
    method = make(name)
    before = [b.clone() for b in method.teacher.buffers()]
    method(views(method), moment())
    assert any(not torch.equal(a, b) for a, b in zip(before, method.teacher.buffers(), strict=True))


def state(method):
    """All that a method holds, apart from batch-norm statistics: tensors and plain attributes."""
    tensors = {
        key: value.clone()
        for key, value in method.state_dict().items()
        if not key.endswith(STATISTICS)
    }
    plain = {
        (name, key): repr(value)
        for name, module in method.named_modules()
        for key, value in vars(module).items()
        if not key.startswith("_")
    }
    return tensors, plain


def same_state(before, after):
    assert before[1] == after[1]
    assert before[0].keys() == after[0].keys()
    for key, value in before[0].items():
        assert torch.equal(value, after[0][key]), key


@pytest.mark.parametrize("train", [True, False])
def test_forward_changes_nothing_but_batch_norm_statistics(method, train):
    method.train(train)
    before = state(method)
    for step in range(2):
        method(views(method, step), moment(step)).loss.backward()
    same_state(before, state(method))


def test_a_skipped_step_changes_nothing(method):
    method.after_step(moment(), one_step(method))
    if hasattr(method, "teacher"):
        method.teacher.momentum = None
    before = state(method)
    result = method(views(method, 1), moment(1))
    method.after_step(moment(1), result._replace(skipped=torch.tensor(1.0)))
    if hasattr(method, "teacher"):
        method.teacher.momentum = None  # kept for the log
    same_state(before, state(method))


def test_a_step_that_is_not_skipped_is_the_same_with_and_without_the_mask(method):
    other = copy.deepcopy(method)
    for net, skipped in ((method, None), (other, torch.tensor(0.0))):
        result = one_step(net)
        net.after_step(moment(), result._replace(skipped=skipped))
    for key, value in method.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key


def test_what_after_step_needs_is_detached_and_in_the_step(method):
    result = method(views(method), moment())
    assert all(not tensor.requires_grad for tensor in result.update.values())
    clone = copy.deepcopy(method)
    method.after_step(moment(), result)
    clone.after_step(moment(), result)  # another instance: nothing was stashed on the first
    for key, value in method.state_dict().items():
        assert torch.equal(value, clone.state_dict()[key]), key


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_moment_of_one_number_is_enough_by_hand(name):
    method = make(name)
    needs_index = name == "instdisc"
    at = Moment(step=3, index=torch.arange(8)) if needs_index else Moment(step=3)
    result = method(views(method), at)
    result.loss.backward()
    method.after_step(at, result)
    assert result.loss.isfinite()


def test_a_method_that_must_know_the_data_says_so():
    x = views(make("instdisc"))
    unaware = METHODS["instdisc"](**SMALL["instdisc"]).build(Tiny())
    with pytest.raises(UserError, match=r"DataInfo\(num_images=...\)"):
        unaware(x, moment())
    with pytest.raises(UserError, match=r"Moment\(index=...\)"):
        make("instdisc")(x, Moment(step=0))
    baseline = BASELINES["supervised"]().build(Tiny())
    with pytest.raises(UserError, match=r"DataInfo\(num_classes=...\)"):
        baseline(x, moment())


def numeric_settings(config):
    values = {field.name: getattr(config(), field.name) for field in fields(config)}
    return {k: v for k, v in values.items() if type(v) in (int, float)}


@pytest.mark.parametrize("name", ALL)
def test_a_numeric_setting_out_of_range_is_refused_by_its_name(name):
    config = (METHODS | BASELINES)[name]
    for setting, value in numeric_settings(config).items():
        assert setting in RANGES
        for wrong in (-1.0, math.nan, -math.inf) if isinstance(value, float) else (-1,):
            with pytest.raises(UserError, match=f"method.{setting} is {wrong}"):
                config(**SMALL[name] | {setting: wrong}).build(Tiny())


@pytest.mark.parametrize("name", WITH_TEACHER)
def test_momentum_may_be_an_int_and_not_above_one(name, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside of tests
    method = make(name, momentum=1)
    before = copy.deepcopy(list(method.teacher.parameters()))
    method.after_step(moment(), one_step(method))
    assert all(torch.equal(a, b) for a, b in zip(before, method.teacher.parameters(), strict=True))
    with pytest.raises(UserError, match="momentum is 5; it must be 0 or more and at most 1"):
        make(name, momentum=5)


def test_any_module_becomes_a_backbone():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    method = METHODS["mocov3"](**SMALL["mocov3"]).build(Backbone.wrap(net, dim=4))
    assert method(views(method), Moment(step=0)).features.shape == (8, 4)
    wrong = METHODS["simclr"](**SMALL["simclr"]).build(Backbone.wrap(net, dim=5))
    with pytest.raises(ValueError, match=r"returned shape \(16, 4\).*dim=5"):
        wrong(views(wrong), Moment(step=0))


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
    method.after_step(moment(), one_step(method))
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


CLASSIFIES = [n for n in sorted(METHODS) if METHODS[n](**SMALL[n]).chance_loss(8) is not None]


def test_the_methods_without_a_chance_loss_are_those_that_classify_nothing():
    without = set(METHODS) - set(CLASSIFIES)
    assert without == {"barlow_twins", "byol", "msbreg", "simsiam", "vicreg"}


@pytest.mark.parametrize("name", CLASSIFIES)
def test_collapsed_features_lose_at_chance(name):
    """With one embedding for all images a contrastive loss is the guess that is documented."""
    method = make(name)
    chance = method.config.chance_loss(8)
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
        patch.setattr(dtype, "is_compiled_on", lambda device: True)
        compile_networks(method)
        shared = DistributedDataParallel(method, broadcast_buffers=False)
        for step in range(4):
            result = shared(views(method, step), moment(step))
            result.loss.backward()
            method.after_step(moment(step), result)
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    return graphs, dict(torch._dynamo.utils.counters["graph_break"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fast_moco", "moco", "swav"])
def test_compiled_networks_make_the_same_graphs_on_two_processes(two_processes, name):
    """As DistributedDataParallel runs them, with patches, a queue and prototypes."""
    for graphs, broken in two_processes(trained, name):
        assert graphs == [graphs[0]] * 4 and graphs[0] > 2
        assert not broken
