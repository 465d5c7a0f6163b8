"""MoCo's rules, and EqCo's margin on it."""

import copy
import math

import pytest
import torch

from selfsight.errors import UserError
from selfsight.methods.base import validate_method
from selfsight.methods.moco import MoCoConfig
from selfsight.nn.batch_norm import shuffle_order
from tests.methods.small import GLOBAL_BATCH as N
from tests.methods.small import make, moment, views


def keys_of(method, step):
    """The keys of a step's batch, from a copy; batch norm must not depend on their order."""
    _, k = copy.deepcopy(method).teacher(views(method, step, dtype=torch.float64)[1])
    return k / k.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("alpha", [None, 64.0])
def test_the_loss_is_equation_1_against_the_queue_before_the_batch_enters(alpha):
    method = make("moco", bn="sync", alpha=alpha).double()
    x = views(method, dtype=torch.float64)
    k, queue, total = keys_of(method, 0), method.queue.read(), 0.0
    _, q = copy.deepcopy(method).student(x[0])
    for i in range(N):
        own = torch.exp(q[i] / q[i].norm() @ k[i] / 0.2)
        s = [torch.exp(q[i] / q[i].norm() @ row / 0.2) for row in queue]
        weight = 1.0 if alpha is None else alpha / len(queue)
        total = total - torch.log(own / (own + weight * sum(s)))
    result = method(x, moment())
    torch.testing.assert_close(result.loss, total / N, rtol=1e-10, atol=0)
    method.after_step(moment(), result)
    torch.testing.assert_close(method.queue.read()[:N], k)
    assert torch.equal(method.queue.read()[N:], queue[N:])


@pytest.mark.parametrize("size", [1, 3, N - 1])
def test_a_queue_below_the_batch_holds_random_keys_of_the_batch_before(size):
    method = make("moco", bn="sync", queue_size=size, alpha=64.0).double()
    places = []
    for step in (0, 1):
        k = keys_of(method, step)
        result = method(views(method, step, dtype=torch.float64), moment(step))
        method.after_step(moment(step), result)
        alike = method.queue.read() @ k.T > 1 - 1e-9  # [size, N]
        assert alike.any(1).all()  # each is a key of this batch,
        assert alike.any(0).sum() == size  # and no two are the same
        places.append(alike.double().argmax(1).tolist())
    assert size == 1 or places[0] != places[1]  # drawn anew
    assert size == 1 or places[0] != list(range(size))


def test_alpha_equal_to_the_queue_changes_no_bit():
    plain, eqco = make("moco"), make("moco", alpha=32.0)
    x = views(plain)
    losses = [m(x, moment()).loss for m in (plain, eqco)]
    gradients = [
        torch.autograd.grad(loss, list(m.student.parameters()))
        for loss, m in zip(losses, (plain, eqco), strict=True)
    ]
    assert torch.equal(*losses)
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_chance_under_the_rule_is_a_guess_among_alpha_negatives():
    method = make("moco", queue_size=4, alpha=64.0)
    for p in method.parameters():
        p.data.zero_()
    loss = method(views(method), moment()).loss.item()
    assert loss == pytest.approx(math.log(65)) == pytest.approx(method.config.chance_loss(8))


@pytest.mark.parametrize("name", ["moco", "simo", "jcl"])
def test_the_teacher_follows_the_weights_that_the_step_left_with_a_constant_momentum(name):
    method = make(name, momentum=0.9)
    before = copy.deepcopy(method.teacher.net)
    for p in method.student.parameters():
        p.data += 1.0
    method.after_step(moment(3), method(views(method), moment(3)))
    for new, old, student in zip(
        method.teacher.net.parameters(),
        before.parameters(),
        method.student.parameters(),
        strict=True,
    ):
        torch.testing.assert_close(new, 0.9 * old + 0.1 * student)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("moco", {}),
        ("moco", {"symmetric": True}),
        ("simo", {"num_negatives": 256}),
        ("simo", {"num_negatives": 256, "symmetric": True}),
        ("jcl", {}),
    ],
    ids=str,
)
def test_shuffled_keys_share_batch_norm_with_other_images_and_still_belong_to_their_own(
    name, settings
):
    shuffled, split = (make(name, bn=bn, bn_group=4, **settings) for bn in ("shuffle", "split"))
    x, net = views(split), copy.deepcopy(split.teacher.net)
    num_keys = split.teacher.num_keys
    order = shuffle_order("shuffle", moment(), torch.cat([x[1]] * num_keys), num_keys)

    def encode_shuffled(images, _=None):
        places = order.tolist()  # the image that stands in each place
        rows = [places.index(image) for image in range(len(places))]
        return tuple(out[rows] for out in net(images[order]))

    loss = shuffled(x, moment()).loss
    assert not torch.allclose(split(x, moment()).loss, loss, rtol=1e-4)
    split.teacher.forward = encode_shuffled
    torch.testing.assert_close(loss, split(x, moment()).loss)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(symmetric=True, queue_size=15), "queue_size is 15 but a batch brings 16 keys"),
        (dict(alpha=0.0), "method.alpha is 0.0; it must be above 0"),
        (dict(alpha=-3.0), "method.alpha is -3.0; it must be above 0"),
        (dict(queue_size=0), "method.queue_size is 0; it must be 1 or more"),
    ],
)
def test_what_cannot_work_is_refused_with_its_rule(settings, words):
    with pytest.raises(UserError, match=words):
        validate_method(MoCoConfig(bn_group=4, **settings), batch_size=8, view_sizes=(16,) * 2)
