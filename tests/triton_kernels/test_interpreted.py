"""Kernels on a CPU, by Triton's interpreter: one process for all, which takes seconds to start."""

import pytest

pytest.importorskip("triton")
from tests.views.test_triton import agrees, elsewhere


@pytest.fixture(scope="module")
def interpreted():
    return elsewhere("tests.views.interpreted", "small", "philox", TRITON_INTERPRET="1")


def test_fused_views_are_the_reference_to_2e_5(interpreted):
    assert agrees(interpreted["small"]), interpreted["small"]


def test_the_kernel_that_draws_gives_the_bits_of_the_operations(interpreted):
    assert interpreted["philox"] == {"compared": 25, "differ": []}
