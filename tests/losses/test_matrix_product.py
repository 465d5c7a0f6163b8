"""Products of bf16 pieces are as precise as float32."""

import pytest
import torch

from selfsight.losses import matrix_product as module
from selfsight.losses.matrix_product import join_pieces, matrix_product, split


def matrices(n, k, m, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(*shape, generator=generator) for shape in ((n, k), (k, m)))
    return a.to(device), b.to(device)


def relative_error(found, expected):
    return ((found.double() - expected).norm() / expected.norm()).item()


def test_the_pieces_add_up_to_the_matrix():
    a, _ = matrices(50, 70, 1)
    for x in (a, a * 1e20, a * 1e-20):
        pieces = split(x)
        assert all(piece.dtype == torch.bfloat16 for piece in pieces)
        assert torch.equal(sum(piece.double() for piece in pieces), x.double())


def test_what_is_left_out_is_below_the_rounding_of_float32():
    a, b = matrices(40, 300, 30)
    wide, tall = join_pieces(a, b)
    expected = a.double() @ b.double()
    left_out = relative_error(wide.double() @ tall.double(), expected)
    assert left_out < relative_error(a @ b, expected) / 5
    assert relative_error(wide[:, -300:].double() @ tall[-300:].double(), expected) > 1e-3  # bf16


def test_small_products_and_those_on_a_cpu_are_plain():
    a, b = matrices(5, 6, 7)
    assert torch.equal(matrix_product(a, b), a @ b)
    assert torch.equal(matrix_product(a.double(), b.double()), a.double() @ b.double())


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_values_and_gradients_on_a_gpu_are_those_of_float64(compiled, monkeypatch):
    monkeypatch.setattr(module, "MIN_PRODUCTS", 0)
    inputs = [x.requires_grad_() for x in matrices(384, 1024, 512, "cuda")]
    function = torch.compile(matrix_product, dynamic=False) if compiled else matrix_product
    product = function(*inputs)
    weight = torch.randn_like(product)
    grads = torch.autograd.grad((product * weight).sum(), inputs)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = exact[0] @ exact[1]
    expected_grads = torch.autograd.grad((expected * weight.double()).sum(), exact)
    for found, right in ((product, expected), *zip(grads, expected_grads, strict=True)):
        assert relative_error(found.detach(), right.detach()) < 1e-6
