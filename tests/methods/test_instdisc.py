"""InstDisc against its equations, written with loops, and the released code's rules."""

import copy
import math

import pytest
import torch

from selfsight.errors import UserError
from selfsight.methods.base import validate_method
from selfsight.methods.instdisc import InstDiscConfig
from tests.methods.small import NUM_IMAGES, make, moment, views

EPS = 1e-7  # of the released code


def embedded(method, step=0):
    """What the student makes of this step's batch, from a copy."""
    x = views(method, step, dtype=torch.float64)
    _, v = copy.deepcopy(method).student(x[0])
    return x, [row / row.norm() for row in v]


def by_hand(v, memory, noise, index, t, z):
    """-log h(i, v) - sum over noise of log(1 - h), with P = exp(v'f / t) / Z."""
    n, m, total = len(memory), noise.shape[1], 0.0
    for b in range(len(v)):
        p = torch.exp(memory[index[b]] @ v[b] / t) / z
        total = total - torch.log(p / (p + m / n + EPS))
        for j in noise[b]:
            p = torch.exp(memory[j] @ v[b] / t) / z
            total = total - torch.log((m / n) / (p + m / n + EPS))
    return total / len(v)


def drawn(config, at):
    return (at.uniform("noise", at.index, config.num_noise) * NUM_IMAGES).long()


def test_nce_is_equation_7_with_z_of_the_first_batch_for_good():
    method = make("instdisc").double()
    t, z = method.config.temperature, None
    for step in (0, 1):
        at, memory = moment(step), method.memory_bank.read()
        x, v = embedded(method, step)
        noise = drawn(method.config, at)
        if z is None:
            seen = [
                torch.exp(memory[j] @ v[b] / t)
                for b in range(len(v))
                for j in (at.index[b], *noise[b])
            ]
            z = NUM_IMAGES * torch.stack(seen).mean().detach()
        step_result = method(x, at)
        method.after_step(at, step_result)
        torch.testing.assert_close(
            step_result.loss, by_hand(v, memory, noise, at.index, t, z), rtol=1e-10, atol=0
        )
        torch.testing.assert_close(method.normalizer, z)


def test_the_softmax_is_over_all_images():
    method = make("instdisc", loss="softmax").double()
    at, memory, t = moment(), method.memory_bank.read(), method.config.temperature
    x, v = embedded(method)
    total = 0.0
    for b, i in enumerate(at.index):
        scores = [torch.exp(row @ v[b] / t) for row in memory]
        total = total - torch.log(scores[i] / sum(scores))
    torch.testing.assert_close(method(x, at).loss, total / len(v))
    assert method.normalizer == 0  # nothing is estimated


def test_the_proximal_term_is_added_to_the_loss():
    plain, method = make("instdisc").double(), make("instdisc", proximal_lambda=30.0).double()
    at, memory = moment(), method.memory_bank.read()
    x, v = embedded(method)
    way = sum((v[b] - memory[i]).square().sum() for b, i in enumerate(at.index)) / len(v)
    torch.testing.assert_close(method(x, at).loss, plain(x, at).loss + 30 * way)


@pytest.mark.parametrize("momentum", [0.5, 0.2, 0.0])
def test_the_memory_moves_toward_the_embedding_after_the_loss(momentum):
    method = make("instdisc", memory_momentum=momentum).double()
    at, before = moment(), method.memory_bank.read()
    x, v = embedded(method)
    method.after_step(at, method(x, at))
    for b, i in enumerate(at.index):
        mixed = momentum * before[i] + (1 - momentum) * v[b]
        torch.testing.assert_close(method.memory_bank.rows[i], (mixed / mixed.norm()).detach())
    others = [i for i in range(NUM_IMAGES) if i not in at.index.tolist()]
    assert torch.equal(method.memory_bank.rows[others], before[others])


def test_noise_is_drawn_with_replacement_over_all_images_anew_at_each_step():
    config = InstDiscConfig(num_noise=4000)
    first, second = drawn(config, moment(0)), drawn(config, moment(5))  # the same images
    assert torch.equal(moment(0).index, moment(5).index) and not torch.equal(first, second)
    counts = torch.bincount(first.flatten(), minlength=NUM_IMAGES).double()
    assert len(counts) == NUM_IMAGES  # its own image can be among an image's noise
    torch.testing.assert_close(counts / counts.mean(), torch.ones_like(counts), atol=0.15, rtol=0)


def test_chance_is_the_loss_of_an_embedding_that_fits_every_row_alike():
    config = InstDiscConfig(num_noise=7)
    h = 1 / 8  # one row is the image's own, seven are noise
    assert config.chance_loss(4) == pytest.approx(-math.log(h) - 7 * math.log(1 - h))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(num_noise=0), "num_noise is 0; it must be 1 or more"),
        (dict(temperature=0.0), "temperature is 0.0; it must be above 0"),
        (dict(memory_momentum=1.0), "memory_momentum is 1.0; it must be 0 or more and below 1"),
        (dict(proximal_lambda=-1.0), "proximal_lambda is -1.0"),
    ],
)
def test_what_cannot_work_is_refused_with_its_rule(settings, words):
    with pytest.raises(UserError, match=words):
        validate_method(InstDiscConfig(**settings), batch_size=8, view_sizes=(16,) * 1)
