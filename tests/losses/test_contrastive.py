"""Each contrastive loss against its paper's formula, written with loops in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsight.losses import info_nce, jcl, nt_xent, queue_info_nce

N, D, K, M = 5, 7, 9, 4


@pytest.fixture
def rows():
    """A function that draws rows; gradients are wanted, so that they can be compared."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, D, dtype=torch.float64, generator=generator).requires_grad_()

    return draw


def unit(vector):
    return vector / vector.norm()


def share(positive, negatives):
    """-log(e^p / (e^p + sum e^n)), the InfoNCE of one query."""
    return -torch.log(positive.exp() / (positive.exp() + sum(n.exp() for n in negatives)))


def agree(loss, by_hand, *inputs):
    torch.testing.assert_close(loss, by_hand, rtol=1e-12, atol=1e-12)
    mine, theirs = torch.autograd.grad(loss, inputs), torch.autograd.grad(by_hand, inputs)
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("t", [0.1, 1.0])
def test_info_nce_is_the_paper_s(rows, t):
    q, k = rows(N), rows(N)
    total = 0.0
    for i in range(N):
        s = [unit(q[i]) @ unit(k[j]) / t for j in range(N)]
        total = total + share(s[i], [s[j] for j in range(N) if j != i])
    agree(info_nce(q, k, temperature=t), total / N, q, k)


def test_info_nce_over_blocks_is_the_mean_of_the_blocks(rows):
    q, k = rows(3, N), rows(N)
    by_block = sum(info_nce(block, k, temperature=0.2) for block in q) / 3
    agree(info_nce(q, k, temperature=0.2), by_block, q, k)


def test_info_nce_of_equal_keys_is_log_n(rows):
    loss = info_nce(rows(6), torch.ones(6, D, dtype=torch.float64), temperature=0.2)
    assert loss.item() == pytest.approx(math.log(6))


@pytest.mark.parametrize("t", [0.1, 1.0])
def test_nt_xent_is_equation_1(rows, t):
    z1, z2 = rows(N), rows(N)
    z = [unit(v) for v in torch.cat([z1, z2])]
    total = 0.0
    for i in range(2 * N):
        j = (i + N) % (2 * N)
        others = [z[i] @ z[k] / t for k in range(2 * N) if k not in (i, j)]
        total = total + share(z[i] @ z[j] / t, others)
    agree(nt_xent(z1, z2, temperature=t), total / (2 * N), z1, z2)


@pytest.mark.parametrize("alpha", [None, 65536.0])
def test_queue_info_nce_is_equation_1_with_eqco_s_weight(rows, alpha):
    q, k, queue, t = rows(N), rows(N), rows(K), 0.2
    weight = 1.0 if alpha is None else alpha / K
    total = 0.0
    for i in range(N):
        against = [unit(q[i]) @ queue[j] / t + math.log(weight) for j in range(K)]
        total = total + share(unit(q[i]) @ unit(k[i]) / t, against)
    agree(queue_info_nce(q, k, queue, temperature=t, alpha=alpha), total / N, q, k, queue)


def test_several_keys_give_the_mean_of_their_losses(rows):
    q, keys, queue = rows(N), rows(M, N), rows(K)
    mean = sum(queue_info_nce(q, k, queue, temperature=0.2) for k in keys) / M
    agree(queue_info_nce(q, keys, queue, temperature=0.2), mean, q, keys, queue)


def test_jcl_is_equation_s3(rows):
    q, keys, queue, t, strength = rows(N), rows(M, N), rows(K), 0.2, 4.0
    total = 0.0
    for i in range(N):
        own = torch.stack([unit(keys[m, i]) for m in range(M)])
        mean = own.mean(0)
        covariance = sum(torch.outer(k - mean, k - mean) for k in own) / M
        query = unit(q[i])
        spread = strength / (2 * t**2) * query @ covariance @ query
        against = sum((query @ negative / t).exp() for negative in queue)
        pull = query @ mean / t
        total = total + torch.log((pull + spread).exp() + against) - pull
    agree(jcl(q, keys, queue, temperature=t, strength=strength), total / N, q, keys)


def test_jcl_of_one_key_is_moco(rows):
    q, keys, queue = rows(N), rows(1, N), rows(K)
    plain = queue_info_nce(q, keys[0], queue, temperature=0.2)
    agree(jcl(q, keys, queue, temperature=0.2, strength=4.0), plain, q, keys)


@pytest.mark.parametrize("shared", [True, False])
def test_chosen_negatives_are_positions_among_the_other_keys(rows, shared):
    q, k, t = rows(N), rows(N), 0.2
    chosen = torch.tensor([[0, 3], [1, 2], [2, 3], [3, 0], [0, 1]])
    chosen = chosen[0] if shared else chosen
    total = 0.0
    for i in range(N):
        others = [j for j in range(N) if j != i]
        columns = [others[p] for p in (chosen if shared else chosen[i])]
        s = [unit(q[i]) @ unit(k[j]) / t for j in range(N)]
        total = total + share(s[i], [s[j] + math.log(256 / 2) for j in columns])
    agree(info_nce(q, k, temperature=t, negatives=chosen, alpha=256.0), total / N, q, k)


def test_chosen_negatives_of_nt_xent_are_neither_anchor_nor_partner(rows):
    z1, z2, t = rows(N), rows(N), 0.2
    chosen = torch.tensor([[(3 * i) % 8, (3 * i + 5) % 8, 7 - i % 3] for i in range(2 * N)])
    z = [unit(v) for v in torch.cat([z1, z2])]
    total = 0.0
    for i in range(2 * N):
        j = (i + N) % (2 * N)
        others = [c for c in range(2 * N) if c not in (i, j)]
        negatives = [z[i] @ z[others[p]] / t for p in chosen[i]]
        total = total + share(z[i] @ z[j] / t, negatives)
    agree(nt_xent(z1, z2, temperature=t, negatives=chosen), total / (2 * N), z1, z2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_alpha_equal_to_the_negatives_used_changes_no_bit(rows, dtype):
    q, k, queue = (x.detach().to(dtype).requires_grad_() for x in (rows(N), rows(N), rows(K)))
    some = torch.tensor([0, 2, 3])
    for loss, number in (
        (lambda a: info_nce(q, k, temperature=0.2, alpha=a), N - 1),
        (lambda a: info_nce(q, k, temperature=0.2, alpha=a, negatives=some), 3),
        (lambda a: nt_xent(q, k, temperature=0.2, alpha=a), 2 * N - 2),
        (lambda a: queue_info_nce(q, k, queue, temperature=0.2, alpha=a), K),
    ):
        plain, eqco = loss(None), loss(float(number))
        assert torch.equal(plain, eqco)
        assert torch.equal(torch.autograd.grad(plain, q)[0], torch.autograd.grad(eqco, q)[0])


def test_all_others_chosen_is_the_plain_loss(rows):
    q, k = rows(N), rows(N)
    everyone = torch.randperm(N - 1, generator=torch.Generator().manual_seed(1))
    agree(info_nce(q, k, temperature=0.2, negatives=everyone), info_nce(q, k, temperature=0.2), q)


@settings(deadline=None, max_examples=20)
@given(logit=st.floats(-200, 200))
def test_far_apart_logits_stay_finite(logit):
    # unit vectors over a tiny temperature: the loss is log(1 + e^-x) wherever x lies
    q = torch.eye(2, dtype=torch.float64)[:1].clone().requires_grad_()
    queue = torch.tensor([[1.0 - logit / 200, 0.0]], dtype=torch.float64)
    loss = queue_info_nce(q, q.detach(), queue, temperature=0.005)
    expected = math.log1p(math.exp(-logit)) if logit > -30 else -logit
    assert loss.item() == pytest.approx(expected, rel=1e-9)
    assert torch.autograd.grad(loss, q)[0].isfinite().all()


def test_keys_of_another_width_are_refused(rows):
    with pytest.raises(Exception, match="type"):
        info_nce(rows(N), rows(N)[:, 1:], temperature=0.2)
