"""What every method must do. A new method joins by its file."""

import copy
import math
from dataclasses import replace
from typing import get_args

import jaxtyping
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from selfsight.check_settings import field_types
from selfsight.conformance import CHECKS, check
from selfsight.conformance.method_under_test import step_optimizer
from selfsight.conformance.processes_and_resume_checks import check_compiled
from selfsight.errors import UserError
from selfsight.methods import BASELINES, METHODS, Moment
from selfsight.methods.base import RANGES, validate_method
from selfsight.nn import Backbone
from selfsight.train.compile import compile_networks
from selfsight.views import View
from tests.methods.small import SMALL, Tiny, make, moment, small, views
from tests.methods.traced_steps import compiled_as_on_cuda

CONFIGS = METHODS | BASELINES
ALL = sorted(CONFIGS)
WITH_TEACHER = [name for name in ALL if hasattr(make(name), "teacher")]


@pytest.fixture(params=ALL)
def method(request):
    return make(request.param)


# Two processes are in tests/dist, with more settings.
CHECKS_OF_ONE = {name: check for name, check in CHECKS.items() if name != "two processes"}
WITHOUT = {
    "teacher follows": set(ALL) - set(WITH_TEACHER),
    "teacher gradient": set(ALL) - set(WITH_TEACHER),
    "positives": {name for name in ALL if not CONFIGS[name].info_nce},
    "image index": {name for name in ALL if CONFIGS[name].needs_memory_bank},
}


@pytest.mark.parametrize("name", ALL)
def test_every_check_of_the_package_passes_or_does_not_apply(name):
    outcomes = {r.check: (r.outcome, r.reason) for r in check(small(name), CHECKS_OF_ONE)}
    assert {c for c, (outcome, _) in outcomes.items() if outcome == "does not apply"} == {
        c for c, names in WITHOUT.items() if name in names
    }
    assert [(c, reason) for c, (outcome, reason) in outcomes.items() if outcome == "fail"] == []


def test_only_a_teacher_is_not_trained(method):
    for name, p in method.named_parameters():
        assert p.requires_grad != name.startswith("teacher.")


@pytest.mark.parametrize("name", WITH_TEACHER)
def test_only_parameters_of_the_teacher_follow(name):
    method = make(name)
    result = step_optimizer(small(name), method)
    buffers = copy.deepcopy(list(method.teacher.buffers()))
    method.after_step(moment(), result)
    assert all(torch.equal(a, b) for a, b in zip(buffers, method.teacher.buffers(), strict=True))


@pytest.mark.parametrize("name", WITH_TEACHER)
def test_the_teacher_runs_in_training_mode_and_keeps_its_own_statistics(name):
    method = make(name)
    before = [b.clone() for b in method.teacher.buffers()]
    method(views(method), moment())
    assert any(not torch.equal(a, b) for a, b in zip(before, method.teacher.buffers(), strict=True))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_moment_of_one_number_is_enough_by_hand(name):
    method = make(name)
    index = torch.arange(8) if METHODS[name].needs_memory_bank else None
    at = Moment(step=3, index=index)
    result = method(views(method), at)
    result.loss.backward()
    method.after_step(at, result)
    assert result.loss.isfinite()


def test_missing_views_are_copies_of_the_last_one_and_spare_views_are_left_out():
    """As with BYOL's pair: a third view is made as the second is."""
    first, second = View(size=32), View(size=32, blur=0.0)
    assert METHODS["msbreg"](num_views=4).match_views((first, second)) == (first, *[second] * 3)
    assert METHODS["lejepa"](num_large=3, num_small=0).match_views((first, second)) == (
        first,
        second,
        second,
    )
    assert METHODS["instdisc"]().match_views((first, second)) == (first,)


# Other ways through `after_step` than those of the settings above.
OTHER_WAYS = [
    ("instdisc", {"loss": "softmax"}),
    ("moco", {"queue_size": 3}),
    ("moco", {"symmetric": True}),
    ("nnclr", {"teacher_momentum": 0.9}),
    ("swav", {"queue_size": 0}),
]


@pytest.mark.parametrize(("name", "settings"), OTHER_WAYS, ids=str)
def test_other_ways_through_after_step_keep_its_rules(name, settings):
    rules = ("after_step reads the step", "skipped step", "mask of zero", "resume")
    results = check(small(name, **settings), {rule: CHECKS[rule] for rule in rules})
    assert [(r.check, r.outcome, r.reason) for r in results] == [(r, "pass", "") for r in rules]


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
    """The type of each setting that is a number, or may be None instead."""
    types = {
        name: (declared, *get_args(declared)) for name, declared in field_types(config).items()
    }
    return {name: kind for name, kinds in types.items() for kind in (int, float) if kind in kinds}


@pytest.mark.parametrize("name", ALL)
def test_a_numeric_setting_out_of_range_is_refused_by_its_name(name):
    config = CONFIGS[name]
    for setting, kind in numeric_settings(config).items():
        assert setting in RANGES | config.ranges
        for wrong in (-1.0, math.nan, -math.inf) if kind is float else (-1,):
            with pytest.raises(UserError, match=f"method.{setting} is {wrong}"):
                config(**SMALL[name] | {setting: wrong}).build(Tiny())


@pytest.mark.parametrize(
    ("bn", "group", "batch_size", "words"),
    [
        ("sync", 32, 1, "batch_size is 1; batch normalization needs 2 or more"),
        ("split", 1, 8, "method.bn_group 1: groups must hold 2 or more"),
        ("split", 3, 8, "method.bn_group 3: groups must hold 2 or more and divide the batch"),
    ],
)
def test_a_batch_without_groups_for_batch_norm_is_refused(bn, group, batch_size, words):
    config = METHODS["simclr"](bn=bn, bn_group=group)
    validate_method(replace(config, bn_group=2), batch_size=2, view_sizes=(16, 16))
    with pytest.raises(UserError, match=words):
        validate_method(config, batch_size=batch_size, view_sizes=(16, 16))


@pytest.mark.parametrize("name", WITH_TEACHER)
def test_momentum_may_be_an_int_and_not_above_one(name, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside of tests
    method = make(name, momentum=1)
    before = copy.deepcopy(list(method.teacher.parameters()))
    method.after_step(moment(), step_optimizer(small(name, momentum=1), method))
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


CLASSIFIES = [n for n in sorted(METHODS) if METHODS[n](**SMALL[n]).chance_loss(8) is not None]


def test_every_method_with_infonce_has_a_chance_loss():
    assert {name for name in METHODS if METHODS[name].info_nce} <= set(CLASSIFIES)


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


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_it_traces_without_a_graph_break_on_two_processes(two_processes, name):
    """And what changes from step to step makes no new graph."""
    two_processes(check_compiled, small(name))


def trained(name):
    """Graphs after each step of a method compiled as training does, and what broke them."""
    method, graphs = make(name), []
    with compiled_as_on_cuda():
        compile_networks(method)
        shared = DistributedDataParallel(method, broadcast_buffers=False)
        for step in range(4):
            result = shared(views(method, step), moment(step))
            result.loss.backward()
            method.after_step(moment(step), result)
            graphs.append(counters["stats"]["unique_graphs"])
        return graphs, dict(counters["graph_break"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fast_moco", "moco", "swav"])
def test_compiled_networks_make_the_same_graphs_on_two_processes(two_processes, name):
    """As DistributedDataParallel runs them, with patches, a queue and prototypes."""
    for graphs, broken in two_processes(trained, name):
        assert graphs == [graphs[0]] * 4 and graphs[0] > 2
        assert not broken
