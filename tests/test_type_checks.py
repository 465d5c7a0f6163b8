"""The type checks that run with the tests detect wrong shapes and wrong types."""

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError

from selfsight.losses import info_nce
from selfsight.optim import Schedule
from selfsight.views.spatial import crop


def test_a_dimension_of_two_arguments_must_agree():
    with pytest.raises(BeartypeCallHintViolation, match="parameter k"):
        info_nce(torch.randn(4, 8), torch.randn(4, 7), temperature=0.1)


def test_a_shape_that_depends_on_an_argument_is_checked():
    box = torch.tensor([[0, 0, 2, 2]] * 3)
    with pytest.raises(TypeCheckError, match="flip"):
        crop(torch.rand(3, 1, 4, 4), box, 2, flip=torch.ones(2, dtype=torch.bool))


def test_plain_types_of_functions_and_dataclasses_are_checked():
    with pytest.raises(BeartypeCallHintViolation, match="temperature"):
        info_nce(torch.randn(4, 8), torch.randn(4, 8), temperature="0.1")
    with pytest.raises(BeartypeCallHintViolation, match="warmup_epochs"):
        Schedule(warmup_epochs="10")
