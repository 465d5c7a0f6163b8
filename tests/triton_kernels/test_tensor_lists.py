"""Lists of tensors that one launch works on: their layouts and the table of their addresses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")
from selfsight.triton_kernels.tensor_lists import (
    CHUNK,
    address_table,
    has_layout_of,
    have_equal_layouts,
    is_dense,
    num_chunks,
)
from tests.views.test_triton import elsewhere


@pytest.mark.slow
def test_the_kernels_compile_for_sm_90_once_and_move_four_words_at_a_time(tmp_path):
    """Never for other sizes and addresses, which a graph could not record."""
    found = elsewhere(
        "tests.triton_kernels.interpreted_lists", "compiled", TRITON_CACHE_DIR=str(tmp_path)
    )
    variants = {  # of numbers and device scalars; of five variants of LARS with and without ratio
        "lerp_kernel": 2,
        "sums_kernel": 1,
        "update_kernel": 1,
        "factors_kernel": 10,
    }
    for kernel, number in variants.items():
        assert len(list(tmp_path.rglob(f"{kernel}.cubin"))) == number
    assert [f for f in found if f["spilled"] or not f["along_rows"]] == []
    assert [f for f in found if not f["vectors"] and f["kernel"] != "factors_kernel"] == []


def lists(device):
    tensors = [torch.zeros(length, device=device) for length in (3, 0, 2 * CHUNK, 5)]
    others = [torch.ones_like(x) for x in tensors]
    return tensors, others, [x[1:] for x in others]


def check_table(device):
    tensors, others, parts = lists(device)
    with torch.no_grad():
        table = address_table(tensors, others, parts)
    expected = [[x.data_ptr() for x in row] for row in (tensors, others, parts)]
    assert table.tolist() == [*expected, [3, 0, 2 * CHUNK, 5]]


def test_the_table_has_all_addresses_and_lengths():
    check_table("cpu")
    assert num_chunks(lists("cpu")[0]) == 4


@pytest.mark.gpu
def test_the_table_on_a_gpu_has_all_addresses_and_lengths():
    check_table("cuda")


@pytest.mark.gpu
def test_a_cuda_graph_writes_the_table():
    tensors = [torch.zeros(3, device="cuda") for _ in range(300)]
    address_table(tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        table = address_table(tensors)
    for _ in range(2):
        table.zero_()
        graph.replay()
        assert table.tolist() == [[x.data_ptr() for x in tensors], [3] * 300]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(1, 3), min_size=4, max_size=4),
    st.permutations(range(4)),
    st.permutations(range(4)),
)
def test_tensors_of_equal_layout_have_equal_elements_in_memory(shape, order, other):
    """Axes of length 1 do not matter. A copy of the memory is compared with a copy of the axes."""

    def tensor(order):
        x = torch.arange(torch.tensor(shape).prod()).view([shape[i] for i in order])
        return x.permute([order.index(i) for i in range(4)])

    x, y = tensor(order), tensor(other)
    assert has_layout_of(x, y) == torch.equal(x, y)


def test_layouts_are_equal_in_shape_strides_type_and_without_gaps():
    x = torch.zeros(2, 3, 4, 4)
    last = x.to(memory_format=torch.channels_last)
    assert have_equal_layouts([x, last], [x.clone(), last.clone()], [x, last])
    assert not have_equal_layouts([x], [last])
    assert not have_equal_layouts([x], [x], [last])
    assert not have_equal_layouts([x], [x[:1]])
    assert not have_equal_layouts([x], [x.to(torch.bfloat16)])
    assert not have_equal_layouts([x.double()], [x.double()])
    assert not is_dense(x[..., ::2])
    assert not have_equal_layouts([x[..., ::2]], [x[..., ::2]])
