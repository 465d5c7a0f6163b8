"""Kernels on a CPU, by Triton's interpreter: one process for all, which takes seconds to start."""

import pytest

pytest.importorskip("triton")
from tests.triton_kernels.interpreted_lists import TOLERANCE
from tests.views.test_triton import agrees, elsewhere


@pytest.fixture(scope="module")
def interpreted():
    cases = ("small", "philox", "lars", "moving_average")
    return elsewhere("tests.views.interpreted", *cases, TRITON_INTERPRET="1")


def test_fused_views_are_the_reference_to_2e_5(interpreted):
    assert agrees(interpreted["small"]), interpreted["small"]


def test_the_kernel_that_draws_gives_the_bits_of_the_operations(interpreted):
    assert interpreted["philox"] == {"compared": 25, "differ": []}


def test_kernels_of_lars_are_its_torch_operations(interpreted):
    """In all variants, for tensors of odd, zero and large size, zero norms and other layouts."""
    found = interpreted["lars"]
    assert len(found) == 10
    assert all(value < TOLERANCE for value in found.values()), found


def test_the_kernel_of_moving_averages_is_torch_lerp(interpreted):
    found = interpreted["moving_average"]
    assert len(found) == 7
    assert all(value < TOLERANCE for value in found.values()), found
