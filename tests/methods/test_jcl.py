"""JCL against equation S.3, written with loops, and the released code's rules."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from selfsight.errors import UserError
from selfsight.methods.base import validate_method
from selfsight.methods.jcl import JCLConfig
from selfsight.nn import Queue
from selfsight.nn.batch_norm import BatchNorm, shuffle_order
from tests.methods.small import GLOBAL_BATCH as N
from tests.methods.small import TOTAL, make, moment, views


def embedded(method):
    """Queries [N, D] and unit keys [M, N, D] of the batch, from a copy without shuffling."""
    x, again = views(method, dtype=torch.float64), copy.deepcopy(method)
    _, q = again.student(x[0])
    _, k = again.teacher(torch.cat(x[1:]))
    k = k / k.norm(dim=1, keepdim=True)
    return x, [row / row.norm() for row in q], k.view(method.config.num_keys, N, -1)


@pytest.mark.parametrize("step", [0, 9, 10, TOTAL - 1])
def test_the_loss_is_equation_s3_with_lambda_grown_by_the_epoch(step):
    method = make("jcl", bn="sync", strength=4.0).double()
    x, q, keys = embedded(method)
    queue, t, total = method.queue.read(), 0.2, 0.0
    strength = 4.0 * (step // 10 + 1) / (TOTAL // 10)  # ten steps an epoch
    for i in range(N):
        mean = keys[:, i].mean(0)
        covariance = sum(torch.outer(k - mean, k - mean) for k in keys[:, i]) / len(keys)
        spread = strength / (2 * t**2) * q[i] @ covariance @ q[i]
        against = sum(torch.exp(q[i] @ row / t) for row in queue)
        total = total + torch.log(torch.exp(q[i] @ mean / t + spread) + against) - q[i] @ mean / t
    torch.testing.assert_close(method(x, moment(step)).loss, total / N, rtol=1e-10, atol=0)


def test_without_the_ramp_lambda_is_whole_from_the_start():
    ramped, whole = make("jcl"), make("jcl", ramp=False)
    x, last = views(ramped), moment(TOTAL - 1)
    losses = [m(x, at).loss for m, at in ((ramped, last), (whole, last))]
    torch.testing.assert_close(*losses)
    assert whole.config.strength == 4.0


def test_multi_key_is_the_mean_of_infonce_over_the_keys():
    method = make("jcl", bn="sync", loss="multi_key").double()
    x, q, keys = embedded(method)
    queue, total = method.queue.read(), 0.0
    for key in keys:
        for i in range(N):
            own = torch.exp(q[i] @ key[i] / 0.2)
            total = total - torch.log(own / (own + sum(torch.exp(q[i] @ r / 0.2) for r in queue)))
    expected = total / (N * len(keys))
    torch.testing.assert_close(method(x, moment()).loss, expected, rtol=1e-10, atol=0)


def test_the_queue_takes_in_means_that_are_not_made_unit_vectors():
    method = make("jcl", bn="sync").double()
    x, _, keys = embedded(method)
    method.after_step(moment(), method(x, moment()))
    torch.testing.assert_close(method.queue.read()[:N], keys.mean(0))
    assert (method.queue.read()[:N].norm(dim=1) < 1 - 1e-6).all()


def test_the_queue_after_a_step_is_that_of_the_released_code():
    with np.load(Path(__file__).parents[1] / "reference/jcl.npz") as file:
        keys, before, after = (
            torch.from_numpy(file[name])
            for name in ("keys_crop_major", "queue", "queue_after_T0.2_lam4.0")
        )
        num_keys = int(file["M"])
    queue = Queue(before.shape[1], before.shape[0]).to(before.dtype)
    queue.keys.copy_(before.T)
    unit = keys / keys.norm(dim=1, keepdim=True)
    queue.push(unit.unflatten(0, (num_keys, -1)).mean(0))
    torch.testing.assert_close(queue.read(), after.T, rtol=1e-9, atol=1e-12)


def test_a_group_of_batch_norm_has_the_keys_of_as_many_images_as_it_has_queries():
    method = make("jcl", num_keys=3, bn_group=4)
    groups = {
        part: {m.group for m in getattr(method, part).modules() if isinstance(m, BatchNorm)}
        for part in ("student", "teacher")
    }
    assert groups == {"student": {4}, "teacher": {12}}


def test_shuffling_mixes_all_keys_of_the_batch():
    method = make("jcl", num_keys=3, bn_group=4)
    order = shuffle_order(method.config.bn, moment(), torch.zeros(3 * N, 3, 4, 4), 3)
    assert sorted(order.tolist()) == list(range(3 * N)) and order.tolist() != list(range(3 * N))
    groups = order.view(2, 12) // N  # which of the three keys stand in each group of 3 x 4
    assert all(len(group.unique()) == 3 for group in groups)


@pytest.mark.parametrize("num_keys", [0, 1])
def test_fewer_than_two_keys_are_refused(num_keys):
    config = JCLConfig(num_keys=num_keys, bn="sync")
    with pytest.raises(UserError, match=f"method.num_keys is {num_keys}; it must be 2 or more"):
        validate_method(config, batch_size=8, view_sizes=(16,) * config.num_views)


def test_a_queue_shorter_than_a_batch_is_refused():
    with pytest.raises(UserError, match=r"method.queue_size is 4 but a batch brings 8 keys"):
        validate_method(JCLConfig(queue_size=4, bn="sync"), batch_size=8, view_sizes=(16,) * 6)


def test_the_views_must_be_one_more_than_the_keys():
    with pytest.raises(UserError, match="takes 6 views of each image and the recipe has 5"):
        validate_method(JCLConfig(bn="sync"), batch_size=8, view_sizes=(16,) * 5)
