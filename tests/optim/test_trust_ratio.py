"""LARS in its variants and LAMB against their equations, one tensor at a time, in float64."""

import copy
from functools import partial

import pytest
import torch

from selfsight.optim import LAMB, LARS
from tests.optim.calls import Calls

LARS_VARIANTS = ("mocov3", "simclr", "larc", "clipped", "fastmoco")
ADAPTIVE = [LAMB, *(partial(LARS, variant=f) for f in LARS_VARIANTS)]
LR, BETA, TRUST, DECAY = 0.3, 0.9, 0.01, 0.1
SHAPES = [(4, 3), (2, 3, 3, 3), (5,), (3, 2)]


@pytest.fixture
def tensors():
    """Weights, the last all zero, and four steps of gradients, one of which is all zero."""
    torch.manual_seed(0)
    weights = [torch.randn(*shape, dtype=torch.float64) for shape in SHAPES]
    weights[-1].zero_()
    gradients = [[torch.randn_like(w) for w in weights] for _ in range(4)]
    gradients[2][0].zero_()
    return weights, gradients


def run(optimizer, params, gradients):
    for step in gradients:
        for param, gradient in zip(params, step, strict=True):
            param.grad = gradient.clone()
        optimizer.step()
    return [p.detach() for p in params]


def parameters(weights):
    return [torch.nn.Parameter(w.clone()) for w in weights]


def by_hand(variant, w, gradients, adapt, beta):
    m = torch.zeros_like(w)
    for g in gradients:
        size, length = float(w.norm()), float(g.norm())
        decayed = g + DECAY * w
        r = 1.0
        if adapt and variant in ("mocov3", "simclr"):
            if size > 0 and decayed.norm() > 0:
                r = TRUST * size / float(decayed.norm())
        elif adapt and variant in ("larc", "clipped"):
            if size > 0 and length > 0:
                r = TRUST * size / (length + DECAY * size + 1e-8)
                r = min(r / LR, 1.0) if variant == "clipped" else r
            else:
                decayed = g  # apex leaves such gradients as they are, decay included
        elif adapt and size > 0 and length + DECAY * size > 0:
            r = TRUST * size / (length + DECAY * size + 1e-8)
        if variant == "simclr":
            m = beta * m + LR * r * decayed
            w = w - m
        elif variant == "fastmoco":
            m = beta * m + decayed
            w = w - LR * r * m
        else:
            m = beta * m + r * decayed
            w = w - LR * m
    return w


@pytest.mark.parametrize("variant", LARS_VARIANTS)
@pytest.mark.parametrize("adapt", [True, False])
@pytest.mark.parametrize("beta", [BETA, 0.0])
def test_lars_is_its_variants_equation(tensors, variant, adapt, beta):
    weights, gradients = tensors
    params = parameters(weights)
    group = {"params": params, "adapt": adapt, "weight_decay": DECAY}
    optimizer = LARS([group], lr=LR, momentum=beta, trust_coefficient=TRUST, variant=variant)
    mine = run(optimizer, params, gradients)
    for i, w in enumerate(weights):
        expected = by_hand(variant, w, [step[i] for step in gradients], adapt, beta)
        torch.testing.assert_close(mine[i], expected, rtol=1e-9, atol=1e-14)


def test_a_clipped_step_is_that_of_sgd_and_never_one_of_no_gradient(tensors):
    weights, gradients = tensors
    small = [[g / 100 for g in step] for step in gradients]  # the ratio is clipped to 1
    params, others = parameters(weights), parameters(weights)
    group = {"params": params, "weight_decay": 0.0}
    clipped = LARS([group], lr=LR, momentum=BETA, trust_coefficient=1.0, variant="clipped")
    mine = run(clipped, params, small)
    theirs = run(torch.optim.SGD(others, lr=LR, momentum=BETA), others, small)
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-14)
    for lr in (0.0, torch.tensor(0.0, dtype=torch.float64)):  # the first step of a warm-up
        params = parameters(weights)
        group = {"params": params, "weight_decay": DECAY}
        found = run(LARS([group], lr=lr, variant="clipped"), params, gradients)
        torch.testing.assert_close(found, weights, rtol=0, atol=0)


@pytest.mark.parametrize("adapt", [True, False])
def test_lamb_is_algorithm_2(tensors, adapt):
    weights, gradients = tensors
    params = parameters(weights)
    mine = run(LAMB(params, lr=LR, weight_decay=DECAY, adapt=adapt), params, gradients)
    for i, w in enumerate(weights):
        m, v = torch.zeros_like(w), torch.zeros_like(w)
        for t, step in enumerate(gradients, start=1):
            m = 0.9 * m + 0.1 * step[i]
            v = 0.999 * v + 0.001 * step[i] ** 2
            u = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-6) + DECAY * w
            r = float(w.norm() / u.norm()) if adapt and w.norm() > 0 and u.norm() > 0 else 1.0
            w = w - LR * r * u
        torch.testing.assert_close(mine[i], w, rtol=1e-9, atol=1e-14)


def test_lamb_without_ratio_and_decay_is_adam(tensors):
    weights, gradients = tensors
    params, theirs = parameters(weights), parameters(weights)
    mine = run(LAMB(params, lr=LR, adapt=False), params, gradients)
    adam = run(torch.optim.Adam(theirs, lr=LR, eps=1e-6), theirs, gradients)
    torch.testing.assert_close(mine, adam, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", [LARS, LAMB])
def test_saving_and_loading_changes_no_bit(tensors, make, tmp_path):
    weights, gradients = tensors
    params = parameters(weights)
    optimizer = make(params, lr=LR, weight_decay=DECAY)
    run(optimizer, params, gradients[:2])
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")

    others = parameters([p.detach() for p in params])
    other = make(others, lr=1.0)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for a, b in zip(
        run(optimizer, params, gradients[2:]), run(other, others, gradients[2:]), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("make", [LARS, LAMB])
def test_a_learning_rate_on_the_device_gives_the_same_steps(tensors, make):
    weights, gradients = tensors
    params, others = parameters(weights), parameters(weights)
    mine = run(make(params, lr=LR), params, gradients)
    scalar = torch.tensor(LR, dtype=torch.float64)
    theirs = run(make(others, lr=scalar), others, gradients)
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=0)


@pytest.mark.parametrize("make", ADAPTIVE)
def test_a_skipped_step_changes_nothing_and_the_next_is_unaffected(tensors, make):
    weights, gradients = tensors
    params, others = parameters(weights), parameters(weights)
    optimizer, plain = make(params, lr=LR), make(others, lr=LR)
    run(optimizer, params, gradients[:1])
    run(plain, others, gradients[:1])
    optimizer.found_inf = torch.tensor(1.0)
    run(optimizer, params, [[torch.full_like(w, torch.nan) for w in weights]])
    optimizer.found_inf = torch.tensor(0.0)
    mine = run(optimizer, params, gradients[1:])
    torch.testing.assert_close(mine, run(plain, others, gradients[1:]), rtol=0, atol=0)


@pytest.mark.parametrize("make", ADAPTIVE)
def test_a_gradient_in_another_memory_layout_gives_the_same_step(make):
    torch.manual_seed(0)
    weight, gradient = torch.randn(2, 4, 3, 5, 5).double()
    params = parameters([weight.contiguous(memory_format=torch.channels_last)])
    others = parameters([weight])
    mine = run(make(params, lr=LR, weight_decay=DECAY), params, [[gradient]] * 2)
    theirs = run(make(others, lr=LR, weight_decay=DECAY), others, [[gradient]] * 2)
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("make", ADAPTIVE)
def test_more_tensors_take_no_more_calls(make):
    def calls(num_tensors):
        params = parameters([torch.randn(3, 2) for _ in range(num_tensors)])
        optimizer = make(params, lr=torch.tensor(LR), weight_decay=DECAY)
        gradients = [[torch.randn(3, 2) for _ in params]]
        run(optimizer, params, gradients)  # buffers are made at the first step
        for p in params:
            p.grad = torch.ones_like(p)
        with Calls() as seen:
            optimizer.step()
        return seen.names

    assert calls(2) == calls(30)


@pytest.mark.parametrize("make", [LARS, LAMB])
def test_a_tensor_without_gradient_stays(tensors, make):
    weights, gradients = tensors
    params = parameters(weights)
    optimizer = make(params, lr=LR, weight_decay=DECAY)
    params[1].grad = gradients[0][1]
    optimizer.step()
    before = copy.deepcopy(weights)
    assert torch.equal(params[0].detach(), before[0])
    assert not torch.equal(params[1].detach(), before[1])
