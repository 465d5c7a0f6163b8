"""Waiting is what the device waits, not what a host does that is ahead of it."""

import time

import pytest
import torch

from selfsight.data.wait_timer import LEAD, Waits


def test_on_the_cpu_it_is_the_time_that_passed():
    waits = Waits(torch.device("cpu"))
    assert waits.seconds == 0
    with waits.one():
        time.sleep(0.02)
    assert 0.02 <= waits.seconds < 1
    before = waits.seconds
    time.sleep(0.01)
    assert waits.seconds == before


@pytest.mark.gpu
def test_a_busy_gpu_does_not_wait_and_an_idle_one_does():
    waits = Waits(torch.device("cuda", 0))
    with waits.one():
        pass
    torch.cuda._sleep(400_000_000)  # cycles: about a fifth of a second
    with waits.one():
        time.sleep(0.05)
    torch.cuda.synchronize()
    assert waits.seconds < 0.02
    with waits.one():
        time.sleep(0.05)
    torch.cuda.synchronize()
    assert 0.04 < waits.seconds < 0.2


@pytest.mark.gpu
def test_the_host_is_a_few_batches_ahead_and_no_more():
    waits, ends = Waits(torch.device("cuda", 0)), []
    for _ in range(4 * LEAD):
        with waits.one():
            pass
        torch.cuda._sleep(20_000_000)
        ends.append(torch.cuda.Event())
        ends[-1].record()
        assert sum(not end.query() for end in ends) <= LEAD + 1
