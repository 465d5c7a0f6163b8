"""A head is a Sequential in all but the frame that a compiler sees."""

import torch
from torch import nn

from selfsight.nn import mlp


def test_names_and_numbers_are_those_of_a_sequential():
    torch.manual_seed(0)
    head = mlp(5, 7, 3, last_norm="scale")
    plain = nn.Sequential(*head)
    assert list(head.state_dict()) == list(plain.state_dict())
    x = torch.randn(4, 5)
    assert torch.equal(head(x), plain(x))
