"""Sinkhorn's codes and SwAV's loss: marginals, symmetries, and the published loop by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsight import dist
from selfsight.losses.clustering import (
    codes,
    prototype_scores,
    sinkhorn,
    swapped_prediction,
)

N, K, D = 6, 4, 5


def cosines(n=N, k=K, seed=0):
    g = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(n, k, generator=g, dtype=torch.float64) - 1


shapes = dict(n=st.integers(1, 12), k=st.integers(1, 6), seed=st.integers(0, 1000))


@settings(max_examples=40, deadline=None)
@given(**shapes, iterations=st.integers(1, 5))
def test_every_row_is_a_distribution(n, k, seed, iterations):
    q = sinkhorn(cosines(n, k, seed), iterations=iterations)
    assert (q >= 0).all()
    torch.testing.assert_close(q.sum(1), torch.ones(n, dtype=torch.float64))


@settings(max_examples=15, deadline=None)
@given(**shapes)
def test_prototypes_come_to_share_the_rows_equally(n, k, seed):
    q = sinkhorn(cosines(n, k, seed), epsilon=0.5, iterations=200)
    torch.testing.assert_close(q.sum(0), torch.full((k,), n / k).double(), rtol=1e-6, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(**shapes, shift=st.floats(-1e4, 1e4))
def test_a_shift_of_all_scores_changes_no_code(n, k, seed, shift):
    scores = cosines(n, k, seed)
    torch.testing.assert_close(sinkhorn(scores + shift), sinkhorn(scores), rtol=1e-6, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(**shapes, extra=st.integers(1, 5))
def test_rows_that_do_not_count_might_as_well_not_be_there(n, k, seed, extra):
    rows = torch.cat([cosines(extra, k, seed + 1), cosines(n, k, seed)])
    q = sinkhorn(rows, counted=torch.arange(len(rows)) >= extra)
    torch.testing.assert_close(q[extra:], sinkhorn(rows[extra:]))
    assert not q[:extra].any()


def test_three_rounds_of_the_published_loop():
    scores = cosines()
    q = [[float((scores[n, k] / 0.05).exp()) for n in range(N)] for k in range(K)]
    total = sum(map(sum, q))
    q = [[value / total for value in row] for row in q]
    for _ in range(3):
        q = [[value / sum(row) / K for value in row] for row in q]
        columns = [sum(q[k][n] for k in range(K)) for n in range(N)]
        q = [[q[k][n] / columns[n] / N for n in range(N)] for k in range(K)]
    expected = torch.tensor(q, dtype=torch.float64).T * N
    torch.testing.assert_close(sinkhorn(scores), expected)


def test_codes_are_no_function_of_their_scores_for_the_gradient():
    assert not sinkhorn(cosines().requires_grad_()).requires_grad


def share():
    return dist.gather(sinkhorn(dist.local_rows(cosines(8))))


def test_two_processes_share_out_the_rows_of_both(two_processes):
    for found in two_processes(share):
        torch.testing.assert_close(found, sinkhorn(cosines(8)))


@pytest.mark.parametrize("full", [True, False])
def test_past_rows_are_shared_out_too_if_the_queue_is_full(full):
    scores, past = cosines(), cosines(5, seed=1)
    found = codes(scores, past, torch.tensor(full))
    expected = sinkhorn(torch.cat([past, scores]))[5:] if full else sinkhorn(scores)
    torch.testing.assert_close(found, expected)


def test_swapped_prediction_is_equation_2_over_all_pairs_of_views():
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(4, N, K, generator=g, dtype=torch.float64, requires_grad=True)
    targets = torch.stack([sinkhorn(scores[i].detach()) for i in (0, 1)])
    by_hand = 0.0
    for a in range(2):
        for v in range(4):
            if v != a:
                for n in range(N):
                    log_p = scores[v, n] / 0.1 - (scores[v, n] / 0.1).exp().sum().log()
                    by_hand = by_hand - (targets[a, n] * log_p).sum() / (2 * 3 * N)
    loss = swapped_prediction(scores, targets, temperature=0.1)
    torch.testing.assert_close(loss, by_hand)
    mine, theirs = (torch.autograd.grad(x, scores)[0] for x in (loss, by_hand))
    torch.testing.assert_close(mine, theirs)


def test_scores_are_cosines_to_unit_prototypes():
    z, prototypes = torch.randn(2, N, D), torch.nn.functional.normalize(torch.randn(K, D))
    expected = torch.nn.functional.cosine_similarity(z[:, :, None], prototypes, dim=-1)
    torch.testing.assert_close(prototype_scores(z, prototypes), expected)
