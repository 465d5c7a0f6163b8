"""Schedules against their formulae and by their shape."""

import math

import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsight.errors import UserError
from selfsight.optim.schedules import Schedule, cosine, linear

share = st.floats(0, 1)
fields = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["cosine", "constant", "step"]),
        "warmup_epochs": st.floats(0.1, 30),
        "warmup_start": share,
        "end": share,
        "milestones": st.just((40, 60)),
    }
)


@settings(deadline=None)
@given(fields=fields, peak=st.floats(1e-5, 10))
def test_the_rate_is_continuous_where_the_warm_up_ends(fields, peak):
    schedule = Schedule(**fields)
    at = schedule.warmup_epochs
    before, after = (schedule.lr(at + d, 100.0, peak) for d in (-1e-9, 1e-9))
    assert before == pytest.approx(peak, rel=1e-6)
    assert after == pytest.approx(peak, rel=1e-6)


@settings(deadline=None)
@given(fields=fields, a=share, b=share)
def test_the_warm_up_only_rises(fields, a, b):
    schedule = Schedule(**fields)
    early, late = sorted((a * schedule.warmup_epochs, b * schedule.warmup_epochs))
    # up to rounding: peak times a share that is 1 during the warm-up
    assert schedule.lr(early, 100.0, 1.0) <= schedule.lr(late, 100.0, 1.0) + 1e-12


@settings(deadline=None)
@given(fields=fields, epoch=st.floats(0, 120), peak=st.floats(1e-5, 10), shifted=st.booleans())
def test_the_rate_stays_between_its_lowest_share_and_the_peak(fields, epoch, peak, shifted):
    schedule = Schedule(**fields, shifted=shifted)
    lowest = min(schedule.warmup_start, 0.01) * min(schedule.end, 0.01)
    rate = schedule.lr(epoch, 100.0, peak)
    assert peak * lowest * (1 - 1e-9) <= rate <= peak * (1 + 1e-9)


@settings(deadline=None)
@given(a=st.floats(0, 1), b=st.floats(0, 1), start=st.floats(-5, 5), end=st.floats(-5, 5))
def test_a_cosine_goes_one_way_from_start_to_end(a, b, start, end):
    early, late = cosine(min(a, b), start, end), cosine(max(a, b), start, end)
    assert (late - early) * (end - start) >= -1e-12
    assert cosine(0.0, start, end) == pytest.approx(start, abs=1e-12)
    assert cosine(1.0, start, end) == pytest.approx(end, abs=1e-12)
    assert cosine(0.5, start, end) == pytest.approx((start + end) / 2, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(fields=fields, per_epoch=st.booleans(), epoch=st.floats(0, 120))
def test_device_scalars_give_the_same_numbers(fields, per_epoch, epoch):
    schedule = Schedule(**fields, per_epoch=per_epoch)
    tensor = torch.tensor(epoch, dtype=torch.float64)
    rate = schedule.lr(tensor, 100.0, 0.5)
    assert isinstance(rate, torch.Tensor)
    assert rate.item() == pytest.approx(schedule.lr(epoch, 100.0, 0.5), rel=1e-12, abs=1e-15)
    assert cosine(tensor / 120, 0.99, 1.0).item() == pytest.approx(cosine(epoch / 120, 0.99, 1.0))
    assert linear(tensor / 120, 0.99, 1.0).item() == pytest.approx(linear(epoch / 120, 0.99, 1.0))


@pytest.mark.parametrize(("epoch", "factor"), [(0.0, 1), (119.99, 1), (120.0, 0.1), (160.5, 0.01)])
def test_moco_v1_falls_tenfold_at_120_and_160(epoch, factor):
    schedule = Schedule(name="step", milestones=(120.0, 160.0), per_epoch=True)
    for number in (epoch, torch.tensor(epoch, dtype=torch.float64)):
        assert float(schedule.lr(number, 200, 0.03)) == pytest.approx(0.03 * factor)


@pytest.mark.parametrize("epoch", [0.0, 0.99, 57.3, 199.999])
def test_moco_v2_follows_a_cosine_once_an_epoch(epoch):
    expected = 0.03 * 0.5 * (1 + math.cos(math.pi * math.floor(epoch) / 200))
    assert Schedule(per_epoch=True).lr(epoch, 200, 0.03) == pytest.approx(expected)


@pytest.mark.parametrize("epoch", [0.0, 3.7, 10.0, 64.2, 200.0])
def test_simo_s_cosine_runs_beneath_its_warm_up(epoch):
    schedule = Schedule(warmup_epochs=10.0, warmup_start=0.001, shifted=False)
    share_done = min(epoch / 10, 1)
    warm = 0.001 * (1 - share_done) + share_done
    expected = 0.03 * warm * 0.5 * (1 + math.cos(math.pi * epoch / 200))
    assert schedule.lr(epoch, 200, 0.03) == pytest.approx(expected, abs=1e-12)


def test_swav_ends_at_a_thousandth():
    assert Schedule(end=0.001).lr(100.0, 100.0, 4.8) == pytest.approx(0.0048)


@pytest.mark.parametrize("warmup", [10.0, 12.0])
def test_a_warm_up_as_long_as_the_run_is_refused(warmup):
    with pytest.raises(UserError, match=r"warmup_epochs is 1\d, but epochs is 10"):
        Schedule(warmup_epochs=warmup).check(10)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"name": "cosin"}, 'Did you mean "cosine"'),
        ({"warmup_epochs": -1.0}, "warmup_epochs is -1.0; it must be 0 or more"),
        ({"end": 1.5}, "schedule.end is 1.5; it must be 0 or more and at most 1"),
        ({"warmup_start": math.nan}, "schedule.warmup_start is nan"),
        ({"name": "step"}, "without milestones"),
    ],
)
def test_settings_out_of_range_raise_an_error_that_names_them(settings, sentence, monkeypatch):
    # The type checker of the tests would reject an unknown name first; users run without it.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(UserError, match=sentence):
        Schedule(**settings)
