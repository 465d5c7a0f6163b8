"""Parameter groups, learning rates, clipping and the validation of settings."""

import contextlib
import copy
import dataclasses
import json
import math
from functools import partial

import jaxtyping
import pytest
import torch
from torch import nn

from selfsight.errors import UserError
from selfsight.optim import (
    LAMB,
    LARS,
    OPTIMS,
    Optim,
    Schedule,
    build_optimizer,
    clip_gradients,
    describe_groups,
    load_optimizer_state,
    param_groups,
    set_lr,
)
from tests.optim.calls import Calls


@pytest.fixture
def network():
    """A layer, a norm, a frozen layer and a predictor."""
    parts = {
        "layer": nn.Linear(3, 4),
        "norm": nn.BatchNorm1d(4),
        "frozen": nn.Linear(4, 4).requires_grad_(False),
        "predictor": nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)),
    }
    return nn.ModuleDict(parts)


def optimizer_of(network, config, batch_size=512):
    return build_optimizer(config, network.named_parameters(), batch_size=batch_size)


def group_rows(network, config, batch_size=512):
    return {row["label"]: row for row in describe_groups(optimizer_of(network, config, batch_size))}


def test_lars_neither_decays_nor_adapts_biases_and_norms(network):
    shown = group_rows(network, OPTIMS["lars"])
    assert list(shown) == [
        "network weights",
        "network biases and norms",
        "predictor weights",
        "predictor biases and norms",
    ]
    assert [r["parameters"] for r in shown.values()] == [12, 4 + 8, 8, 2 + 4]
    assert [r["weight_decay"] for r in shown.values()] == [1e-6, 0.0, 1e-6, 0.0]
    assert [r["adapt"] for r in shown.values()] == [True, False, True, False]


def test_sgd_decays_everything_as_moco_does(network):
    shown = group_rows(network, OPTIMS["sgd"])
    assert {label: r["parameters"] for label, r in shown.items()} == {
        "network": 24,
        "predictor": 14,
    }
    assert {r["weight_decay"] for r in shown.values()} == {1e-4}


@pytest.mark.parametrize("name", OPTIMS)
def test_each_trainable_parameter_is_in_one_group_and_no_frozen_one_is(network, name):
    optimizer = optimizer_of(network, OPTIMS[name])
    held = [p for group in optimizer.param_groups for p in group["params"]]
    trainable = [p for p in network.parameters() if p.requires_grad]
    assert sorted(map(id, held)) == sorted(map(id, trainable))
    for p in trainable:
        p.grad = torch.ones_like(p)
    before = [p.clone() for p in network.parameters()]
    optimizer.step()
    moved = [not torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True)]
    assert moved == [p.requires_grad for p in network.parameters()]


@pytest.mark.parametrize(
    ("scale", "lr"), [("linear", 0.3 * 4096 / 256), ("sqrt", 0.3 * math.sqrt(4096)), ("none", 0.3)]
)
def test_the_learning_rate_scales_with_the_batch(network, scale, lr):
    config = Optim(lr=0.3, scale=scale)
    assert group_rows(network, config, 4096)["network"]["lr"] == pytest.approx(lr)


def test_simclr_s_two_scalings_agree_at_4096(network):
    linear = group_rows(network, Optim(lr=0.3), 4096)["network"]["lr"]
    root = group_rows(network, Optim(lr=0.075, scale="sqrt"), 4096)["network"]["lr"]
    assert linear == pytest.approx(root)


def test_a_constant_predictor_neither_warms_up_nor_falls(network):
    config = Optim(lr=0.05, predictor_lr="constant", schedule=Schedule(warmup_epochs=1.0))
    optimizer = optimizer_of(network, config)
    seen = []
    for step in (0, 10, 55, 100):
        set_lr(optimizer, config, step=step, steps_per_epoch=10, epochs=10, batch_size=512)
        seen.append([group["lr"] for group in optimizer.param_groups])
    assert [s[0] for s in seen] == pytest.approx([0.0, 0.1, 0.05, 0.0])
    assert [s[1] for s in seen] == pytest.approx([0.1] * 4)
    assert [row["schedule"] for row in describe_groups(optimizer)] == ["main", "constant"]


def test_barlow_twins_has_another_learning_rate_for_biases(network):
    config = dataclasses.replace(OPTIMS["lars"], lr=0.2, lr_1d=0.0048)
    optimizer = optimizer_of(network, config, 2048)
    set_lr(optimizer, config, step=10, steps_per_epoch=1, epochs=1000, batch_size=2048)
    rates = {group["label"]: group["lr"] for group in optimizer.param_groups}
    assert rates["network weights"] == pytest.approx(0.2 * 8)
    assert rates["network biases and norms"] == pytest.approx(0.0048 * 8)


def test_a_learning_rate_on_the_device_is_filled_in_place(network):
    config = Optim()
    optimizer = optimizer_of(network, config)
    rate = torch.tensor(0.0)
    optimizer.param_groups[0]["lr"] = rate
    set_lr(optimizer, config, step=0, steps_per_epoch=1, epochs=10, batch_size=512)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.06)


@pytest.mark.parametrize(("clip", "length"), [(None, 3.0), (1.0, 1.0), (5.0, 3.0)])
def test_clipping_scales_the_joint_norm_of_all_gradients(clip, length):
    weights = {"a": nn.Parameter(torch.zeros(2, 2)), "predictor.b": nn.Parameter(torch.zeros(5, 1))}
    optimizer = build_optimizer(Optim(clip=clip), weights.items(), batch_size=256)
    for p in weights.values():
        p.grad = torch.ones_like(p)
    had = clip_gradients(optimizer, clip)
    assert (had is None) if clip is None else (had.item() == pytest.approx(3.0))
    grads = torch.cat([p.grad.flatten() for p in weights.values()])
    assert grads.norm().item() == pytest.approx(length, rel=1e-5)


BUILT = {
    "sgd": (Optim(momentum=0.5), partial(torch.optim.SGD, momentum=0.5)),
    "nesterov": (
        Optim(momentum=0.5, nesterov=True),
        partial(torch.optim.SGD, momentum=0.5, nesterov=True),
    ),
    "adamw": (
        Optim(name="adamw", betas=(0.5, 0.7)),
        partial(torch.optim.AdamW, betas=(0.5, 0.7)),
    ),
    "lars": (
        Optim(name="lars", momentum=0.5, trust_coefficient=0.1),
        partial(LARS, momentum=0.5, trust_coefficient=0.1),
    ),
    "larc": (Optim(name="lars", variant="larc"), partial(LARS, variant="larc")),
    "lamb": (Optim(name="lamb", betas=(0.5, 0.7)), partial(LAMB, betas=(0.5, 0.7))),
}


@pytest.mark.parametrize("name", BUILT)
def test_each_setting_reaches_the_optimizer_of_its_name(name):
    config, optimizer = BUILT[name]
    config = dataclasses.replace(config, lr=0.3, scale="none", weight_decay=0.1)
    found = []
    for build in (
        lambda weight: build_optimizer(config, [("w", weight)], batch_size=512),
        lambda weight: optimizer([weight], lr=0.3, weight_decay=0.1),
    ):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(4, 3))
        built = build(weight)
        for _ in range(3):
            weight.grad = torch.randn(4, 3)
            built.step()
        found.append(weight.detach())
    torch.testing.assert_close(*found)


def test_defaults_are_those_of_the_papers():
    """MoCo v2, and MoCo v3 with ResNet-50, with ViT, and the best row of its ablation of LAMB."""
    found = {
        name: (o.lr, o.weight_decay, o.exclude_1d, o.schedule.warmup_epochs)
        for name, o in OPTIMS.items()
    }
    assert found == {
        "sgd": (0.03, 1e-4, False, 0),
        "adamw": (1.5e-4, 0.1, False, 40),
        "lars": (0.3, 1e-6, True, 10),
        "lamb": (5e-4, 1e-3, True, 40),
    }
    assert {(o.momentum, o.betas, o.scale) for o in OPTIMS.values()} == {
        (0.9, (0.9, 0.999), "linear")
    }


FUSED = [*OPTIMS.values(), Optim(nesterov=True), Optim(name="lars", variant="fastmoco")]


def steps(network, optimizer, config, count, read=Calls):
    """Steps with gradients of their own, as the loop takes them, none of which reads a number."""
    for step in range(count):
        for i, p in enumerate(p for p in network.parameters() if p.requires_grad):
            p.grad = torch.sin(torch.arange(p.numel()) + i + step).view(p.shape)
        with read():
            set_lr(optimizer, config, step=step, steps_per_epoch=2, epochs=30, batch_size=512)
            clip_gradients(optimizer, config.clip)
            optimizer.step()
    return [p.detach() for p in network.parameters()]


@pytest.mark.parametrize("config", FUSED, ids=lambda c: f"{c.name} {c.variant} {c.nesterov}")
def test_fused_steps_read_nothing_back_and_equal_the_plain_ones(network, config):
    config = dataclasses.replace(config, clip=1.0)
    other = copy.deepcopy(network)
    fused = build_optimizer(config, network.named_parameters(), batch_size=512, fused=True)
    plain = build_optimizer(config, other.named_parameters(), batch_size=512, fused=False)
    rates = [group["lr"] for group in fused.param_groups]
    mine = steps(network, fused, config, 3)
    theirs = steps(other, plain, config, 3, read=contextlib.nullcontext)
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    assert all(group["lr"] is rate for group, rate in zip(fused.param_groups, rates, strict=True))


def test_a_plain_step_with_a_learning_rate_on_the_device_is_detected(network):
    optimizer = optimizer_of(network, Optim())
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    with pytest.raises(AssertionError, match="the host would wait"):
        steps(network, optimizer, Optim(), 1)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_skipped_step_changes_no_weight(network, name):
    optimizer = build_optimizer(
        OPTIMS[name], network.named_parameters(), batch_size=512, fused=True
    )
    before = steps(copy.deepcopy(network), optimizer, OPTIMS[name], 0)
    optimizer.found_inf = torch.tensor(1.0)
    for found, was in zip(steps(network, optimizer, OPTIMS[name], 2), before, strict=True):
        assert torch.equal(found, was)


@pytest.mark.parametrize("name", OPTIMS)
@pytest.mark.parametrize("fused", [True, False])
def test_a_state_loads_into_fused_and_plain_optimizers(network, name, fused):
    config, shape = OPTIMS[name], dict(batch_size=512)
    first = build_optimizer(config, network.named_parameters(), fused=fused, **shape)
    steps(network, first, config, 2, read=contextlib.nullcontext)
    saved, other = copy.deepcopy(first.state_dict()), copy.deepcopy(network)
    second = build_optimizer(config, other.named_parameters(), fused=not fused, **shape)
    rates = [group["lr"] for group in second.param_groups]
    load_optimizer_state(second, saved)
    assert [group["lr"] for group in second.param_groups] == pytest.approx(
        [float(group["lr"]) for group in first.param_groups]
    )
    if not fused:
        groups = zip(second.param_groups, rates, strict=True)
        assert all(group["lr"] is rate for group, rate in groups)
    went_on = steps(network, first, config, 2, read=contextlib.nullcontext)
    theirs = steps(other, second, config, 2, read=contextlib.nullcontext)
    torch.testing.assert_close(theirs, went_on, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("config", FUSED, ids=lambda c: f"{c.name} {c.variant} {c.nesterov}")
def test_a_recorded_step_replays_at_another_learning_rate(network, config):
    config, other = dataclasses.replace(config, clip=1.0), copy.deepcopy(network)
    network = network.to("cuda")
    optimizer = build_optimizer(config, network.named_parameters(), batch_size=512)
    plain = build_optimizer(config, other.named_parameters(), batch_size=512)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    for p in network.parameters():
        p.grad = torch.full_like(p, 0.1) if p.requires_grad else None
    optimizer.found_inf = torch.zeros((), device="cuda")
    stream.wait_stream(torch.cuda.current_stream())  # which writes weights and gradients
    with torch.cuda.stream(stream):
        for _ in range(3):
            clip_gradients(optimizer, config.clip)
            optimizer.step()
    with torch.cuda.graph(graph, stream=stream):
        clip_gradients(optimizer, config.clip)
        optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)  # before it replays
    for p in other.parameters():
        p.grad = torch.full_like(p, 0.1) if p.requires_grad else None
    for _ in range(3):
        clip_gradients(plain, config.clip)
        plain.step()
    for step in range(4):
        for o in (optimizer, plain):
            set_lr(o, config, step=step, steps_per_epoch=1, epochs=100, batch_size=512)
        graph.replay()
        clip_gradients(plain, config.clip)
        plain.step()
    for mine, theirs in zip(network.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMS)
def test_settings_survive_json(name):
    read = json.loads(json.dumps(dataclasses.asdict(OPTIMS[name])))
    schedule = Schedule(**{**read["schedule"], "milestones": tuple(read["schedule"]["milestones"])})
    again = Optim(**{**read, "betas": tuple(read["betas"]), "schedule": schedule})
    assert again == OPTIMS[name]


def test_the_state_dict_holds_the_groups(network, tmp_path):
    optimizer = optimizer_of(network, OPTIMS["lars"])
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    other = optimizer_of(network, OPTIMS["lars"])
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert describe_groups(other) == describe_groups(optimizer)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"name": "lar"}, r'optim.name is "lar".*Did you mean "lars"'),
        ({"scale": "liner"}, 'Did you mean "linear"'),
        ({"variant": "apex"}, "it must be one of mocov3, simclr, larc, clipped, fastmoco"),
        ({"predictor_lr": "constnt"}, 'Did you mean "constant"'),
        ({"lr": 0.0}, r"optim.lr is 0.0; it must be above 0"),
        ({"lr_1d": -1.0}, "optim.lr_1d is -1.0"),
        ({"lr": math.nan}, "optim.lr is nan"),
        ({"lr": math.inf}, "optim.lr is inf"),
        ({"momentum": 1.0}, "optim.momentum is 1.0; it must be 0 or more and below 1"),
        ({"momentum": math.nan}, "optim.momentum is nan"),
        ({"betas": (0.9, 1.0)}, r"optim.betas is \(0.9, 1.0\).*below 1"),
        ({"weight_decay": -0.1}, "optim.weight_decay is -0.1; it must be 0 or more"),
        ({"trust_coefficient": 0.0}, "optim.trust_coefficient is 0.0"),
        ({"clip": 0.0}, "above 0 .* or None"),
        ({"name": "lars", "nesterov": True}, "SGD with momentum"),
    ],
)
def test_settings_out_of_range_raise_an_error_that_names_them(settings, sentence, monkeypatch):
    # The type checker of the tests would reject an unknown name first; users run without it.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(UserError, match=sentence):
        Optim(**settings)


@pytest.mark.parametrize("optimizer", [LARS, LAMB])
@pytest.mark.parametrize("lr", [-1.0, math.nan])
def test_an_optimizer_by_hand_validates_its_settings_too(network, optimizer, lr):
    with pytest.raises(UserError, match=f"lr is {lr}"):
        optimizer(param_groups(network), lr=lr)
    with pytest.raises(UserError, match="weight_decay is -1"):
        optimizer(param_groups(network), lr=0.1, weight_decay=-1.0)


def test_lars_with_param_groups_scales_weights_and_leaves_biases_and_norms_alone():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))
    optimizer = LARS(param_groups(net), lr=0.5, weight_decay=0.1, trust_coefficient=0.01)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    for name, p in net.named_parameters():
        step = (before[name] - p.detach()) / 0.5
        if name in ("0.weight", "2.weight"):
            assert step.norm().item() == pytest.approx(0.01 * before[name].norm().item(), rel=1e-5)
        else:
            torch.testing.assert_close(step, torch.ones_like(step))  # plain SGD, no weight decay


def test_param_groups_without_exclusions_are_one_group_and_serve_torchs_optimizers():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    (group,) = param_groups(net, exclude_1d=False)
    assert group["params"] == list(net.parameters()) and "weight_decay" not in group
    weights, rest = torch.optim.AdamW(param_groups(net), weight_decay=0.1).param_groups
    assert (weights["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    assert len(weights["params"]) == 1 and len(rest["params"]) == 3


def test_a_run_shorter_than_the_warm_up_raises_an_error():
    OPTIMS["lars"].schedule.check(11)
    with pytest.raises(UserError, match=r"Lower the warm-up .* or raise epochs"):
        OPTIMS["lars"].schedule.check(10)


def test_a_network_without_trainable_weights_raises_an_error(network):
    with pytest.raises(UserError, match="nothing to train"):
        optimizer_of(network.requires_grad_(False), Optim())


def test_a_warm_up_shorter_than_an_epoch_rises_within_it():
    schedule = Schedule(per_epoch=True, warmup_epochs=0.5)
    assert [schedule.lr(epoch, 10, 1.0) for epoch in (0.0, 0.25, 0.5, 0.9)] == [0.0, 0.5, 1.0, 1.0]
