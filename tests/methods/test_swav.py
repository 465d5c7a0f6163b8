"""SwAV: its loss by hand, its queue, its frozen prototypes and its small crops."""

import copy

import pytest
import torch
import torch.nn.functional as F

from selfsight.catalog import build_recipe
from selfsight.errors import UserError
from selfsight.losses.clustering import sinkhorn
from selfsight.methods.swav import SwAVConfig
from selfsight.optim import LARS, build_optimizer, set_lr
from tests.methods.small import make, moment, views


def by_hand(method, x, queues=None, temperature=0.1):
    """Algorithm 1 for two large and some small views; queues are rows before the batch's."""
    backbone, head = method.student.backbone, method.student.projector
    h = torch.cat([backbone(torch.cat(x[:2])), backbone(torch.cat(x[2:]))])
    z = F.normalize(head(h), dim=1)
    scores = (z @ method.prototypes.weight.T).chunk(len(x))
    terms = []
    for a in (0, 1):
        rows = scores[a]
        if queues:
            rows = torch.cat([queues[a] @ method.prototypes.weight.T, rows])
        q = sinkhorn(rows.detach())[-len(x[0]) :]
        others = [v for v in range(len(x)) if v != a]
        for v in others:
            log_p = (scores[v] / temperature).log_softmax(1)
            terms.append(-(q * log_p).sum(1).mean() / len(others))
    return sum(terms) / 2


@pytest.mark.parametrize("temperature", [0.1, 0.3])
def test_the_loss_is_algorithm_1_over_large_and_small_views(temperature):
    method = make("swav", queue_size=0, temperature=temperature)
    x = views(method)
    assert [v.shape[2] for v in x] == [16, 16, *[6] * 6]
    expected = by_hand(copy.deepcopy(method), x, temperature=temperature)
    torch.testing.assert_close(method(x, moment()).loss, expected)


def test_the_queue_is_used_once_it_is_full_and_before_that_is_not_there():
    method = make("swav", queue_size=16)
    empty = make("swav", queue_size=0)
    empty.load_state_dict(method.state_dict(), strict=False)
    past = [[], []]
    for step in range(4):  # 8 images each: full before the third
        x = views(method, step)
        for i in (0, 1):
            z = copy.deepcopy(method).student
            h = z.backbone(torch.cat(x[:2]))
            small = z.backbone(torch.cat(x[2:]))
            rows = F.normalize(z.projector(torch.cat([h, small])), dim=1).chunk(len(x))[i]
            past[i].append(rows.detach())
        queues = [torch.cat(rows[step - 2 : step]) for rows in past] if step >= 2 else None
        expected = by_hand(copy.deepcopy(method), x, queues)
        result = method(x, moment(step))
        torch.testing.assert_close(result.loss, expected)
        method.prototypes.push(result.update["embeddings"])
        without = empty(x, moment(step)).loss
        assert torch.allclose(without, expected) == (step < 2)


def test_the_queue_waits_for_its_epoch():
    method = make("swav", queue_size=16, queue_epoch=1)  # ten steps make an epoch
    empty = make("swav", queue_size=0)
    empty.load_state_dict(method.state_dict(), strict=False)
    for step in range(13):
        x = views(method, step)
        alike = torch.allclose(method(x, moment(step)).loss, empty(x, moment(step)).loss)
        assert alike == (step < 12), step


def test_prototypes_have_length_one_and_wait_before_they_move():
    method = make("swav", freeze_steps=2)
    optimizer = LARS(
        method.parameters(), 1.0, variant="larc", trust_coefficient=0.1, weight_decay=0.1
    )
    for step in range(3):
        before = method.prototypes.weight.detach().clone()
        optimizer.zero_grad()
        result = method(views(method, step), moment(step))
        result.loss.backward()
        optimizer.step()
        method.after_step(moment(step), result)
        after = method.prototypes.weight.detach()
        torch.testing.assert_close(after.norm(dim=1), torch.ones(6))
        assert torch.allclose(before, after, atol=1e-6) == (step < 2)


def test_there_is_one_forward_pass_for_each_resolution():
    method = make("swav")
    sizes = []
    method.student.backbone.register_forward_pre_hook(lambda _, x: sizes.append(x[0].shape))
    heads = []
    method.student.projector.register_forward_pre_hook(lambda _, x: heads.append(len(x[0])))
    method(views(method), moment())
    assert [(s[0], s[2]) for s in sizes] == [(16, 16), (48, 6)] and heads == [64]


def test_a_batch_too_small_for_the_prototypes_is_refused():
    SwAVConfig(queue_size=3840).validate_batch_size(256)
    SwAVConfig(num_prototypes=256).validate_batch_size(256)  # one embedding for each
    with pytest.raises(UserError, match="3000, but only 256 embeddings are assigned"):
        SwAVConfig().validate_batch_size(256)
    with pytest.raises(UserError, match=r'Use method\.bn "sync"'):
        SwAVConfig(bn="split", num_prototypes=64).validate()
    with pytest.raises(UserError, match="queue_size is 100 but a batch brings 256"):
        SwAVConfig(queue_size=100, num_prototypes=64).validate_batch_size(256)


@pytest.mark.parametrize(
    ("name", "first", "peak", "last"),
    [
        ("swav.imagenet_r50_800ep", 0.3, 4.8, 0.0048),
        ("swav.imagenet_r50_batch256_400ep", 0.6, 0.6, 0.0006),
    ],
)
def test_rates_are_those_of_the_official_scripts(name, first, peak, last):
    made = build_recipe(name)
    weights = {"a": torch.nn.Parameter(torch.ones(2, 2)), "b": torch.nn.Parameter(torch.ones(2))}
    optimizer = build_optimizer(made.optim, weights.items(), batch_size=made.batch_size)
    (group,) = optimizer.param_groups
    assert (group["variant"], group["trust_coefficient"], group["weight_decay"]) == (
        "larc",
        0.001,
        1e-6,
    )

    def rate(step):
        lengths = dict(steps_per_epoch=1, epochs=400, batch_size=made.batch_size)
        set_lr(optimizer, made.optim, step=step, **lengths)
        return float(group["lr"])

    warm = 10 if first < peak else 0
    assert [rate(s) for s in (0, warm, 400)] == pytest.approx([first, peak, last])
