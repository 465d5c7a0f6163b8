"""The alarm: silent on every healthy method, once for a collapse, once when it is over."""

import pytest
import torch
import torch.nn.functional as F

from selfsight.evals.feature_statistics import effective_rank, feature_std
from selfsight.methods import METHODS
from selfsight.methods.simsiam import SimSiam
from selfsight.train.collapse import CollapseAlarm
from selfsight.train.log_records import embed
from tests.methods.small import GLOBAL_BATCH, make, moment, views

STEPS, EVERY = 60, 2
LOW_LR = ("dino", "instdisc", "swav", "vicreg")  # at ten times as much these collapse, or nearly


def view(method, step):
    """Views of eight of 40 images, each of a random pattern: images that can be told apart."""
    g = torch.Generator().manual_seed(step % 5)
    x = F.interpolate(torch.randn(GLOBAL_BATCH, 3, 3, 3, generator=g), size=16, mode="bilinear")
    small = [v.shape[-1] for v in views(method)]
    return [(x + 0.1 * torch.randn(x.shape))[..., :side, :side].contiguous() for side in small]


def train(method, lr=0.03, steps=STEPS):
    """Train on patterns; return a record of every second step."""
    optimizer = torch.optim.SGD(method.parameters(), lr=lr, momentum=0.9)
    records = []
    for step in range(steps):
        at = moment(step, total=steps)
        result = method(view(method, step), at)
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
        method.after_step(at, result)
        if (step + 1) % EVERY == 0:
            h = result.features.detach()
            z = embed(method, h)
            record = {"step": step + 1, "epoch": (step + 1) / 10}
            record |= {"feature_std": float(feature_std(h)), "embedding_std": float(feature_std(z))}
            record["effective_rank"] = float(effective_rank(h))
            records.append(record | {"embedding_rank": float(effective_rank(z))})
    return records


def alarms(records, **settings):
    alarm = CollapseAlarm(
        **{"epochs": STEPS // 10, "batch_size": GLOBAL_BATCH, "embedding_dim": 8} | settings
    )
    return [(r["step"], said.event) for r in records if (said := alarm.update(r))]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_healthy_run_raises_no_alarm(name):
    # DINO's small first weights give all images one output, from which it takes longer to rise.
    settings, steps = ({"head_norm": True}, 2 * STEPS) if name == "dino" else ({}, STEPS)
    records = train(make(name, **settings), lr=0.003 if name in LOW_LR else 0.03, steps=steps)
    assert alarms(records, epochs=steps // 10) == []


@pytest.mark.slow
def test_simsiam_without_its_stop_gradient_raises_the_alarm(monkeypatch):
    forward = SimSiam.forward

    def without_stop_gradient(self, given, at):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "detach", lambda x: x)
            return forward(self, given, at)

    monkeypatch.setattr(SimSiam, "forward", without_stop_gradient)
    ((_, event),) = alarms(train(make("simsiam"), lr=0.5))
    assert event == "collapsed"  # test_learning.py has BYOL without its predictor


@pytest.mark.slow
def test_lejepa_without_sigreg_raises_the_alarm():
    ((_, event),) = alarms(train(make("lejepa", sigreg_weight=0.0), lr=0.5))
    assert event == "collapsed"


def record(step, spread, rank=12.0):
    values = {"feature_std": 0.5, "effective_rank": rank, "embedding_rank": rank}
    return {"step": step, "epoch": step / 10, "embedding_std": spread} | values


def test_a_collapse_is_said_once_and_so_is_its_end():
    spreads = [0.8] * 10 + [0.05] * 20 + [0.7] * 20 + [0.05] * 10
    records = [record(step, spread) for step, spread in enumerate(spreads)]
    said = alarms(records, epochs=6, batch_size=256)
    assert [event for _, event in said] == ["collapsed", "recovered", "collapsed"]
    assert [step for step, _ in said] == [12, 36, 52]  # a median of five needs three


def test_an_alarm_needs_five_records_and_its_end_five_healthy_ones_in_a_row():
    spreads = [0.8] + [0.04] * 9 + 3 * ([0.7] * 4 + [0.04] * 4)  # healthy for four in a row
    records = [record(step, spread) for step, spread in enumerate(spreads)]
    assert alarms(records, batch_size=256) == [(4, "collapsed")]


def test_a_fall_is_from_the_highest_median_and_not_from_one_unusual_batch():
    values = [(0.31, 12.0)] * 6 + [(0.95, 12.0)] + [(0.31, 12.0)] * 6 + [(0.25, 5.0)] * 10
    records = [record(step, *both) for step, both in enumerate(values)]
    assert alarms(records, batch_size=256, embedding_dim=64) == []


def test_a_spread_that_fell_is_a_collapse_if_the_rank_is_low_though_it_has_not_fallen_by_half():
    values = [(0.8, 6.0)] * 6 + [(0.2, 3.5)] * 6
    records = [record(step, *both) for step, both in enumerate(values)]
    assert alarms(records, batch_size=256, embedding_dim=64) == [(8, "collapsed")]


def test_a_spread_that_falls_and_rises_while_the_rank_stays_is_no_collapse():
    """As DINO's does when its last layer begins to learn."""
    spreads = [0.8] * 20 + [0.25] * 28 + [0.7] * 48
    ranks = [32.0] * 20 + [19.0] * 28 + [24.0] * 48
    both = zip(spreads, ranks, strict=True)
    records = [record(step, spread, rank) for step, (spread, rank) in enumerate(both)]
    assert alarms(records, epochs=10, batch_size=256, embedding_dim=None) == []
    low = [r | {"embedding_rank": 9.0} if r["embedding_std"] == 0.25 else r for r in records]
    said = alarms(low, epochs=10, batch_size=256, embedding_dim=None)
    assert [event for _, event in said] == ["collapsed", "recovered"]


def test_one_unusual_batch_raises_no_alarm():
    spreads = [0.8, 0.8, 0.05, 0.8, 0.8, 0.8, 0.05, 0.05, 0.8, 0.8, 0.8]
    records = [record(step, spread) for step, spread in enumerate(spreads)]
    assert alarms(records, epochs=1, batch_size=256) == []


def test_a_start_near_one_point_is_an_alarm_only_if_it_lasts_for_half_of_the_run():
    low = [record(step, 0.02) for step in range(100)]
    assert alarms(low, epochs=10, batch_size=256) == [(50, "collapsed")]
    narrow = [record(step, 0.1, rank=2.5) for step in range(100)]  # as it was before training
    assert alarms(narrow, epochs=10, batch_size=256) == []
    rising = [record(step, 0.1 + step / 100) for step in range(100)]
    assert alarms(rising, epochs=10, batch_size=256) == []


def test_a_resumed_run_does_not_say_again_what_was_said():
    records = [record(step, 0.8 if step < 10 else 0.03) for step in range(40)]
    alarm = CollapseAlarm(epochs=4, batch_size=256, embedding_dim=8, past=records[:20])
    assert [alarm.update(r) for r in records[20:]] == [None] * 20
