"""The kernel that draws gives the bits of torch's operations, in one launch."""

import sys
from unittest import mock

import pytest
import torch

from selfsight import rng

pytest.importorskip("triton")
from selfsight.triton_kernels import philox
from tests.triton_kernels.interpreted_philox import ANY, INDICES, KEYS, MANY, moments
from tests.views.test_triton import Operations, elsewhere

KEY = rng.key(0, "test")


@pytest.mark.slow
def test_the_kernel_compiles_for_sm_90_once_for_each_kind_of_result_and_step(tmp_path):
    """Never for another key, count, step or address, which a graph could not record."""
    found = elsewhere(
        "tests.triton_kernels.interpreted_philox", "compiled", TRITON_CACHE_DIR=str(tmp_path)
    )
    assert len(list(tmp_path.rglob("philox_kernel.cubin"))) == 4
    assert [f for f in found if f["spilled"] or not f["along_rows"]] == []


@pytest.mark.parametrize("at", [3, torch.tensor(3), torch.arange(7)[:, None]])
@pytest.mark.parametrize("draw", [rng.bits, rng.uniform])
def test_a_draw_is_one_launch_and_nothing_else(monkeypatch, draw, at):
    kernel = mock.MagicMock()
    monkeypatch.setattr(rng, "use_triton", lambda index: True)
    monkeypatch.setattr(philox, "philox_kernel", kernel)
    with Operations() as operations:
        draw(KEY, ANY, 5, at)
    kernel.__getitem__.return_value.assert_called_once()
    assert {"empty", "expand"}.issuperset(operations.names)


def test_a_cpu_needs_no_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "selfsight.triton_kernels.philox", None)
    assert rng.uniform(KEY, ANY, 3).shape == (7, 3)


def test_without_a_c_compiler_there_is_no_kernel(monkeypatch):
    monkeypatch.setattr(rng.shutil, "which", lambda name: None)
    assert not rng.has_triton.__wrapped__()


def moved(at):
    return at.cuda() if isinstance(at, torch.Tensor) else at


@pytest.mark.gpu
@pytest.mark.parametrize("draw", [rng.bits, rng.uniform])
@pytest.mark.parametrize("count", [0, 1, 4, 7, MANY])
@pytest.mark.parametrize("name", INDICES)
def test_cpu_and_gpu_draw_the_same(name, count, draw):
    index = INDICES[name]
    for at in moments(len(index), -(-count // 4)).values():
        for key in KEYS.values():
            there = draw(key, index.cuda(), count, moved(at))
            assert torch.equal(draw(key, index, count, at), there.cpu())


@pytest.mark.gpu
def test_a_step_that_lies_on_the_host_is_the_step_as_a_number():
    there = rng.bits(KEY, ANY.cuda(), 5, at=torch.tensor(9))
    assert torch.equal(rng.bits(KEY, ANY, 5, at=9), there.cpu())


@pytest.mark.gpu
def test_more_numbers_than_31_bits_count_are_drawn_to_the_last():
    if torch.cuda.mem_get_info()[0] < 20 << 30:
        pytest.skip("the numbers take 17 GB")
    index = torch.arange(2**16 + 1, device="cuda")
    last = rng.bits(KEY, index, 2**15 + 1)[-1]
    assert torch.equal(rng.bits(KEY, torch.tensor([2**16]), 2**15 + 1)[0], last.cpu())


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.gpu
def test_the_host_does_not_wait_for_a_draw():
    index, step = ANY.cuda(), torch.tensor(3, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for at in (3, torch.tensor(3), step):
            rng.normal(KEY, index, 5, at)
            rng.permutation(KEY, 100, at, device="cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_a_cuda_graph_of_draws_follows_its_step_and_index():
    index, step = ANY.cuda(), torch.tensor(3, device="cuda")

    def draws():
        return (
            rng.bits(KEY, index, 5, step),
            rng.uniform(KEY, index, MANY, step),
            rng.permutation(KEY, 500, step, device="cuda"),
        )

    draws()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = draws()
    for later in (4, 2**32 + 4, 2**31):
        step.fill_(later)
        index.add_(1000)
        graph.replay()
        here = index.cpu()
        assert torch.equal(made[0].cpu(), rng.bits(KEY, here, 5, later))
        assert torch.equal(made[1].cpu(), rng.uniform(KEY, here, MANY, later))
        assert torch.equal(made[2].cpu(), rng.permutation(KEY, 500, later))


@pytest.mark.parametrize(
    "device",
    [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)],
)
def test_compiled_operations_give_the_same_bits(device):
    assert elsewhere("tests.triton_kernels.interpreted_philox", "operations", device)
