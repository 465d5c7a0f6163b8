"""Encoders, and the teacher: a moving average of the student, and of its parameters alone."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from selfsight.backbones.vit import ViT
from selfsight.nn import Backbone, Encoder, Teacher

MOMENTUM = st.floats(0, 1)


def pair(seed):
    """A student, and a teacher that started from other weights."""
    torch.default_generator.manual_seed(seed)  # a hundredth of the time of torch.manual_seed
    student = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
    teacher = Teacher(copy.deepcopy(student))
    for p in teacher.parameters():
        p.data.normal_()
    return student, teacher


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99), MOMENTUM, st.integers(1, 6))
def test_after_n_moves_the_start_weighs_momentum_to_the_n(seed, momentum, moves):
    student, teacher = pair(seed)
    start = [p.clone() for p in teacher.parameters()]
    for _ in range(moves):
        teacher.follow(student, momentum)
    weight = momentum**moves
    for p, first, goal in zip(teacher.parameters(), start, student.parameters(), strict=True):
        torch.testing.assert_close(p, weight * first + (1 - weight) * goal.detach())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99), MOMENTUM)
def test_a_number_and_a_scalar_of_the_device_move_it_alike(seed, momentum):
    student, one = pair(seed)
    other = copy.deepcopy(one)
    one.follow(student, momentum)
    other.follow(student, torch.tensor(momentum, dtype=torch.float64))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99))
def test_momentum_one_keeps_every_bit_and_zero_copies_every_bit(seed):
    student, teacher = pair(seed)
    start = [p.clone() for p in teacher.parameters()]
    teacher.follow(student, 1.0)
    assert all(map(torch.equal, teacher.parameters(), start))
    teacher.follow(student, 0.0)
    assert all(map(torch.equal, teacher.parameters(), student.parameters()))


def test_statistics_and_gradients_stay_its_own():
    student, teacher = pair(0)
    student[1].running_mean.fill_(7.0)
    teacher.follow(student, 0.5)
    assert not bool((teacher.net[1].running_mean == 7.0).any())
    assert not any(p.requires_grad for p in teacher.parameters())


def test_a_teacher_that_copies_no_weights_starts_from_the_networks_own_initialization():
    """A ViT's biases start at zero, which torch's own initialization of its layers would undo."""
    student = ViT(24, 1, 3, patch=4, image_size=16)
    teacher = Teacher(student, copy_weights=False).net
    for name, p in teacher.named_parameters():
        if p.ndim > 1:
            assert not torch.isclose(p, student.get_parameter(name)).all(), name
        elif name.endswith("bias"):
            assert not p.any(), name


class Plain(Backbone):
    """Layers in a row."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize(
    ("norm", "sizes", "calls"),
    [
        (nn.GroupNorm(1, 3), (8, 8, 8), 1),
        (nn.GroupNorm(1, 3), (8, 8, 6), 3),  # another size cannot be in the batch
        (nn.BatchNorm2d(3), (8, 8, 8), 3),  # its statistics are those of one view
    ],
)
def test_views_go_as_one_batch_where_no_batch_norm_mixes_them(norm, sizes, calls):
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 3, 3), norm, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    encoder = Encoder(Plain(*layers), nn.BatchNorm1d(3)).double()  # the head sees one view
    views = [torch.randn(5, 3, size, size, dtype=torch.float64) for size in sizes]
    expected = [encoder(x) for x in views]
    seen = []
    encoder.backbone.register_forward_hook(lambda *_: seen.append(1))
    found = encoder.encode_views(*views)
    assert len(seen) == calls
    torch.testing.assert_close(found, expected)
