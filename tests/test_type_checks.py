"""The type checks that run with the tests detect wrong shapes and wrong types."""

from functools import partial

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from selfsight.losses import info_nce
from selfsight.optim import Schedule
from selfsight.views.spatial import crop
from tests.type_checks import _check_once


def test_a_dimension_of_two_arguments_must_agree():
    with pytest.raises(BeartypeCallHintViolation, match="parameter k"):
        info_nce(torch.randn(4, 8), torch.randn(4, 7), temperature=0.1)


def test_a_shape_that_depends_on_an_argument_is_checked():
    box = torch.tensor([[0, 0, 2, 2]] * 3)
    with pytest.raises(TypeCheckError, match="flip"):
        crop(torch.rand(3, 1, 4, 4), box, 2, flip=torch.ones(2, dtype=torch.bool))


def test_a_choice_of_shapes_that_fails_leaves_no_size_behind():
    """Also where another tensor of that dtype was right before, which is compared quickly."""

    @partial(_check_once, has_shapes=True)
    def add(
        x: Float[Tensor, "n"], y: Float[Tensor, "m n"] | Float[Tensor, "n m"], z: Float[Tensor, "m"]
    ):
        return x

    for _ in range(2):
        add(torch.ones(2), torch.ones(3, 2), torch.ones(3))
        add(torch.ones(2), torch.ones(2, 3), torch.ones(3))
        for y in (torch.ones(3, 3), torch.ones(2, 4), torch.ones(2, 3).double().int()):
            with pytest.raises(BeartypeCallHintViolation):
                add(torch.ones(2), y, torch.ones(3))


def test_fixed_sizes_and_those_between_are_compared_each_time():
    @partial(_check_once, has_shapes=True)
    def add(
        x: Float[Tensor, "n 2 *space"], y: Float[Tensor, "*space n"], z: Float[Tensor, "n _ ..."]
    ):
        return x

    def call(*shapes):
        add(*(torch.ones(shape) for shape in shapes))

    for _ in range(2):
        call((3, 2, 5, 4), (5, 4, 3), (3, 9))
        call((3, 2), (3,), (3, 1, 1))
        for wrong in (
            [(3, 1, 5, 4), (5, 4, 3), (3, 9)],
            [(3, 2, 5, 4), (4, 5, 3), (3, 9)],
            [(3, 2, 5, 4), (5, 4, 2), (3, 9)],
            [(3, 2, 5, 4), (5, 4, 3), (3,)],
            [(3,), (3,), (3, 9)],
        ):
            with pytest.raises(BeartypeCallHintViolation):
                call(*wrong)


def test_plain_types_of_functions_and_dataclasses_are_checked():
    with pytest.raises(BeartypeCallHintViolation, match="temperature"):
        info_nce(torch.randn(4, 8), torch.randn(4, 8), temperature="0.1")
    with pytest.raises(BeartypeCallHintViolation, match="warmup_epochs"):
        Schedule(warmup_epochs="10")
