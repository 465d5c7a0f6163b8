"""DINO: its head, its frozen last layer, its center and its temperatures."""

import copy

import pytest
import torch
import torch.nn.functional as F

from selfsight.methods.base import Moment
from selfsight.methods.dino import DINOConfig
from tests.methods.small import make, moment, views

WITHOUT_SMALL = {"num_small": 0}


def by_hand(method, x, student=0.1, teacher=0.04):
    """Algorithm 1 at these temperatures, one pair of crops at a time."""
    other = copy.deepcopy(method)
    sizes = [[v for v in x if v.shape[2] == size] for size in dict.fromkeys(v.shape[2] for v in x)]
    h = torch.cat([other.student.backbone(torch.cat(alike)) for alike in sizes])
    students = other.student.projector(h).chunk(len(x))
    teachers = other.teacher(torch.cat(x[:2]))[1].chunk(2)
    terms = []
    for u, t in enumerate(teachers):
        p = ((t - other.center) / teacher).softmax(1)
        for v, s in enumerate(students):
            if u != v:
                terms.append(-(p * (s / student).log_softmax(1)).sum(1).mean())
    return sum(terms) / len(terms)


@pytest.mark.parametrize("settings", [{}, WITHOUT_SMALL, {"head_norm": True, "free_scale": True}])
def test_the_loss_is_algorithm_1_over_large_and_small_views(settings):
    method = make("dino", **settings)
    method.center.normal_(generator=torch.Generator().manual_seed(0))
    x = views(method)
    assert len(x) == 2 + method.config.num_small
    expected = by_hand(method, x)
    torch.testing.assert_close(method(x, moment()).loss, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("step", "temperature"), [(0, 0.04), (9, 0.04), (10, 0.06), (19, 0.06), (20, 0.08), (99, 0.08)]
)
def test_the_teachers_temperature_rises_from_epoch_to_epoch(step, temperature):
    """Ten steps an epoch; the last of the epochs in which it rises has the final value already."""
    rise = {"teacher_temperature": 0.08, "temperature_epochs": 3}
    method = make("dino", student_temperature=0.2, **rise)
    x = views(method)
    expected = by_hand(method, x, student=0.2, teacher=temperature)
    torch.testing.assert_close(method(x, moment(step)).loss, expected, rtol=1e-5, atol=1e-6)


def test_the_center_follows_the_teacher_s_logits_after_the_loss():
    method = make("dino", center_momentum=0.75)
    x = views(method)
    logits = copy.deepcopy(method).teacher(torch.cat(x[:2]))[1]
    step = method(x, moment())
    assert not method.center.any()
    method.after_step(moment(), step)
    torch.testing.assert_close(method.center, logits.mean(0) / 4)


def test_the_last_layer_does_not_learn_in_its_first_epochs():
    method = make("dino", freeze_epochs=2, free_scale=True)
    for step, frozen in ((0, True), (5, True), (6, False)):
        method.zero_grad()
        result = method(views(method), Moment(step=step, steps_per_epoch=3, total_steps=99))
        result.loss.backward()
        names = ("student.projector.last.weight", "student.projector.scale")
        assert result.frozen == dict.fromkeys(names, torch.tensor(frozen))  # nor does decay move it
        assert method.student.projector.last.weight.grad.any() != frozen
        assert method.student.projector.scale.grad.any() != frozen
        assert method.student.projector.mlp[0].weight.grad.any()


def test_logits_are_cosines_unless_their_scale_is_free():
    method = make("dino")
    head = method.student.projector
    h = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    expected = F.cosine_similarity(head.mlp(h)[:, None], head.last.weight[None], dim=2)
    torch.testing.assert_close(head(h), expected)
    free = make("dino", free_scale=True)
    assert {*dict(free.named_parameters())} - {*dict(method.named_parameters())} == {
        "student.projector.scale",
        "teacher.net.projector.scale",
    }


def test_batch_norm_of_groups_is_refused():
    with pytest.raises(ValueError, match=r'Use method\.bn "sync"'):
        DINOConfig(bn="split").validate()
