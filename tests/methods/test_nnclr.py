"""NNCLR: its equation in loops, and what stands in its queue."""

import copy

import pytest
import torch
import torch.nn.functional as F

from selfsight.catalog import build_recipe
from selfsight.errors import UserError
from selfsight.methods.nnclr import NNCLRConfig, find_nearest
from selfsight.nn import Queue
from tests.methods.small import make, moment, views


def one_direction(z, p, queue, temperature):
    """Equation 2: the neighbor of each embedding against all predictions of the other view."""
    losses = []
    for i in range(len(z)):
        similar = [F.cosine_similarity(z[i], key, dim=0) for key in queue]
        near = queue[max(range(len(queue)), key=lambda j: similar[j])]
        logits = [F.cosine_similarity(near, p_j, dim=0) / temperature for p_j in p]
        losses.append(torch.logsumexp(torch.stack(logits), 0) - logits[i])
    return sum(losses) / len(losses)


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_the_loss_is_equation_2_both_ways(temperature):
    method = make("nnclr", temperature=temperature)
    x1, x2 = views(method)
    other, queue = copy.deepcopy(method), method.queue.read()
    z1, z2 = other.student(x1)[1], other.student(x2)[1]
    p1, p2 = other.predictor(z1), other.predictor(z2)
    expected = one_direction(z1, p2, queue, temperature) + one_direction(z2, p1, queue, temperature)
    torch.testing.assert_close(method([x1, x2], moment()).loss, expected / 2)


def test_only_unit_embeddings_of_the_first_view_are_kept_and_only_after_the_lookup():
    method = make("nnclr")
    x1, x2 = views(method)
    z1 = copy.deepcopy(method).student(x1)[1]
    first = copy.deepcopy(method)([x1, x2], moment()).loss
    before = method.queue.read()
    method.after_step(moment(), method([x1, x2], moment()))
    torch.testing.assert_close(method.queue.keys[:8], F.normalize(z1, dim=1))
    assert torch.equal(method.queue.keys[8:], before[8:]) and int(method.queue.head) == 8
    # Were the batch looked up in a queue that holds it, each would be its own neighbor.
    assert not torch.allclose(method([x1, x2], moment()).loss, first)


@torch.no_grad()
def test_the_nearest_key_is_the_one_of_greatest_cosine():
    torch.manual_seed(0)
    queue, z = Queue(20, 4), 3 * torch.randn(5, 4)
    expected = F.cosine_similarity(z[:, None], queue.keys, dim=-1).argmax(1)
    assert torch.equal(find_nearest(z, queue.keys), queue.keys[expected])
    assert torch.equal(find_nearest(5 * queue.keys, queue.keys), queue.keys)


def test_a_teacher_may_look_up_the_neighbors():
    method = make("nnclr", teacher_momentum=0.9)
    x1, x2 = views(method)
    for p in method.teacher.parameters():
        p.data.normal_()
    other, queue = copy.deepcopy(method), method.queue.read()
    p1, p2 = (other.predictor(other.student(x)[1]) for x in (x1, x2))
    z1, z2 = (other.teacher(x)[1] for x in (x1, x2))
    expected = one_direction(z1, p2, queue, 0.5) + one_direction(z2, p1, queue, 0.5)
    torch.testing.assert_close(method([x1, x2], moment()).loss, expected / 2)
    weight = [p.clone() for p in method.teacher.parameters()]
    method.after_step(moment(), method([x1, x2], moment()))
    for old, new, online in zip(
        weight, method.teacher.parameters(), method.student.parameters(), strict=True
    ):
        torch.testing.assert_close(new, 0.9 * old + 0.1 * online)


def test_a_queue_shorter_than_the_batch_is_refused():
    with pytest.raises(UserError, match="queue_size is 100 but a batch brings 256"):
        NNCLRConfig(queue_size=100).validate_batch_size(256)


def test_the_published_setting():
    made = build_recipe("nnclr.imagenet_r50_1000ep")
    assert (made.method.queue_size, made.method.temperature) == (98304, 0.1)
    assert (made.batch_size, made.optim.lr, made.optim.weight_decay) == (4096, 0.3, 1e-6)
