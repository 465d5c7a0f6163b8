"""The kernels of LARS take three launches, and on a GPU give torch's steps."""

import sys
from unittest import mock

import pytest
import torch

from selfsight.optim import LARS, lars
from selfsight.optim.lars import step_with_torch

pytest.importorskip("triton")
from selfsight.triton_kernels import lars_kernels as kernels
from tests.triton_kernels.interpreted_lists import (
    SETTINGS,
    VARIANTS,
    difference,
    gradients,
    weights,
)
from tests.views.test_triton import Operations

TOLERANCE = 5e-6  # of the largest element; a single number may cancel
STEPS = 5


def build(variant, *, device="cpu", dtype=torch.float32, adapt=True, lr=None):
    """Parameters, and their optimizer with two groups: the second has no decay and no ratio."""
    params = [torch.nn.Parameter(w.to(dtype)) for w in weights(device)]
    lr = torch.tensor(0.3, device=device) if lr is None else lr
    groups = [
        {"params": [*params[:1], *params[3:]], "adapt": adapt},
        {"params": params[1:3], "weight_decay": 0.0, "adapt": False},
    ]
    return params, LARS(groups, lr, variant=variant, **SETTINGS)


def run(params, optimizer, step):
    """One step, with gradients at new addresses."""
    optimizer.zero_grad(set_to_none=True)
    for p, g in zip(params, gradients(step, params[0].device), strict=True):
        p.grad = g.to(p.dtype)
    optimizer.step()


def state(params, optimizer):
    """Copies of all parameters and momentum buffers."""
    buffers = [optimizer.state[p]["momentum_buffer"] for p in params]
    return [x.detach().clone() for x in [*params, *buffers]]


@pytest.mark.parametrize("adapt", [True, False])
@pytest.mark.parametrize("number", [2, 30])
def test_a_step_of_a_group_is_at_most_three_launches_for_any_number_of_tensors(
    monkeypatch, adapt, number
):
    launches = {}
    for name in ("sums_kernel", "factors_kernel", "update_kernel"):
        launches[name] = mock.MagicMock()
        monkeypatch.setattr(kernels, name, launches[name])
    monkeypatch.setattr(lars, "use_triton", lambda x: True)
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(number)]
    optimizer = LARS(params, lr=torch.tensor(0.1), adapt=adapt)
    for p in params:
        p.grad = torch.ones(3)
        optimizer.state[p]["momentum_buffer"] = torch.zeros(3)
    with Operations() as operations:
        optimizer.step()
    counts = [kernel.__getitem__.return_value.call_count for kernel in launches.values()]
    assert counts == [int(adapt), 1, 1]
    names = [name for name in operations.names if "record_function" not in name]
    assert names == ["zeros", "unbind", "_foreach_add_", "view", "empty", "empty"]


def test_weights_count_as_changed_for_autograd(monkeypatch):
    for name in ("sums_kernel", "factors_kernel", "update_kernel"):
        monkeypatch.setattr(kernels, name, mock.MagicMock())
    monkeypatch.setattr(lars, "use_triton", lambda x: True)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = LARS([weight], lr=0.1)
    loss = (weight * weight).sum()
    weight.grad = torch.ones(3)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_tensors_of_other_types_are_stepped_by_torch(monkeypatch):
    monkeypatch.setattr(lars, "use_triton", lambda x: True)
    monkeypatch.setattr(kernels, "launch_lars", mock.Mock(side_effect=AssertionError))
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    weight.grad = torch.ones_like(weight)
    LARS([weight], lr=0.1).step()
    assert bool((weight < 1).all())


def test_a_cpu_needs_no_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "selfsight.triton_kernels.lars_kernels", None)
    params, optimizer = build("mocov3")
    run(params, optimizer, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("adapt", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_on_a_gpu_are_those_of_torch(monkeypatch, variant, adapt):
    params, optimizer = build(variant, device="cuda", adapt=adapt)
    doubles, reference = build(variant, device="cuda", adapt=adapt, dtype=torch.float64)
    by_torch = mock.Mock(wraps=step_with_torch)
    monkeypatch.setattr(lars, "step_with_torch", by_torch)
    for step in range(STEPS):
        run(params, optimizer, step)
    assert by_torch.call_count == 0
    for step in range(STEPS):
        run(doubles, reference, step)
    assert by_torch.call_count == 2 * STEPS
    assert difference(state(params, optimizer), state(doubles, reference)) < TOLERANCE

    monkeypatch.setattr(lars, "use_triton", lambda x: False)
    others, plain = build(variant, device="cuda", adapt=adapt)
    for step in range(STEPS):
        run(others, plain, step)
    assert difference(state(params, optimizer), state(others, plain)) < TOLERANCE


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_learning_rate_as_a_number_gives_the_same_bits(variant):
    params, optimizer = build(variant, device="cuda")
    others, other = build(variant, device="cuda", lr=0.3)
    for step in range(2):
        run(params, optimizer, step)
        run(others, other, step)
    mine, theirs = state(params, optimizer), state(others, other)
    assert all(map(torch.equal, mine, theirs))


@pytest.mark.gpu
def test_a_large_tensor_gives_the_same_bits_twice_and_the_ratio_of_torch():
    made = torch.Generator("cuda").manual_seed(0)
    weight = torch.randn(8192, 4099, generator=made, device="cuda")
    gradient = torch.randn(weight.shape, generator=made, device="cuda")
    results = []
    for dtype in (torch.float32, torch.float32, torch.float64):
        param = torch.nn.Parameter(weight.to(dtype, copy=True))
        optimizer = LARS([param], torch.tensor(0.3, device="cuda"), **SETTINGS)
        for _ in range(2):
            param.grad = gradient.to(dtype)
            optimizer.step()
        results.append(state([param], optimizer))
    assert all(map(torch.equal, results[0], results[1]))
    assert difference(results[0], results[2]) < 2e-6


@pytest.mark.gpu
def test_tensors_without_elements_are_no_obstacle():
    empty = torch.nn.Parameter(torch.zeros(0, 3, device="cuda"))
    other = torch.nn.Parameter(torch.ones(3, device="cuda"))
    for params in ([empty], [empty, other], [other, empty]):
        for p in params:
            p.grad = torch.ones_like(p)
        LARS(params, lr=0.1).step()
    assert bool((other < 1).all())


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_skipped_step_on_a_gpu_changes_no_bit(variant):
    params, optimizer = build(variant, device="cuda")
    optimizer.found_inf = torch.zeros((), device="cuda")
    run(params, optimizer, 0)
    before = state(params, optimizer)
    optimizer.found_inf.fill_(1.0)
    for p in params:
        p.grad = torch.full_like(p, torch.nan)
    optimizer.step()
    assert all(map(torch.equal, before, state(params, optimizer)))
    optimizer.found_inf.zero_()
    run(params, optimizer, 1)
    others, plain = build(variant, device="cuda")
    plain.found_inf = torch.zeros((), device="cuda")
    for step in range(2):
        run(others, plain, step)
    assert all(map(torch.equal, state(params, optimizer), state(others, plain)))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_cuda_graph_of_steps_is_the_plain_steps(variant):
    """With other gradients, learning rates and skipped steps, to the last bit."""
    sides = []
    for _ in range(2):
        params, optimizer = build(variant, device="cuda")
        optimizer.found_inf = torch.zeros((), device="cuda")
        sides.append((params, optimizer, gradients(0, "cuda")))

    def step(params, optimizer, source):
        optimizer.zero_grad(set_to_none=True)
        for p, g in zip(params, source, strict=True):
            p.grad = g * 1.0
        optimizer.step()

    for side in sides:
        step(*side)  # compiles
    graph = torch.cuda.CUDAGraph()
    sides[0][1].zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step(*sides[0])
    for number in range(1, STEPS):
        for _, optimizer, source in sides:
            torch._foreach_copy_(source, gradients(number, "cuda"))
            optimizer.found_inf.fill_(float(number == 2))
            for group in optimizer.param_groups:
                group["lr"].fill_(0.1 * number)
        graph.replay()
        step(*sides[1])
        assert all(map(torch.equal, state(*sides[0][:2]), state(*sides[1][:2])))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_host_does_not_wait_for_a_step(variant):
    params, optimizer = build(variant, device="cuda")
    optimizer.found_inf = torch.zeros((), device="cuda")
    run(params, optimizer, 0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
