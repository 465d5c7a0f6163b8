"""The wait timer measures the idle time of the device, not of a CPU that is ahead of it."""

import time

import pytest
import torch

from selfsight.data.data_wait import MAX_LEAD, WaitTimer


def test_on_the_cpu_it_measures_the_time_that_passed():
    timer = WaitTimer(torch.device("cpu"))
    assert timer.seconds == 0
    with timer.measure():
        time.sleep(0.02)
    assert 0.02 <= timer.seconds < 1
    before = timer.seconds
    time.sleep(0.01)
    assert timer.seconds == before


@pytest.mark.gpu
def test_only_the_idle_time_of_the_gpu_counts():
    timer = WaitTimer(torch.device("cuda", 0))
    with timer.measure():
        pass
    torch.cuda._sleep(400_000_000)  # cycles: about a fifth of a second
    with timer.measure():
        time.sleep(0.05)
    torch.cuda.synchronize()
    assert timer.seconds < 0.02
    with timer.measure():
        time.sleep(0.05)
    torch.cuda.synchronize()
    assert 0.04 < timer.seconds < 0.2


@pytest.mark.gpu
def test_the_cpu_is_at_most_a_few_batches_ahead():
    timer, ends = WaitTimer(torch.device("cuda", 0)), []
    for _ in range(4 * MAX_LEAD):
        with timer.measure():
            pass
        torch.cuda._sleep(20_000_000)
        ends.append(torch.cuda.Event())
        ends[-1].record()
        assert sum(not end.query() for end in ends) <= MAX_LEAD + 1
