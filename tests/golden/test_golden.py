"""Work on speed may not change a number: losses and weights are those that were recorded."""

import json

import pytest

from selfsight.methods import METHODS
from tests.golden.trace import CASES, EXACT, RECORDED, STEPS, processor, trace

TRACES = json.loads(RECORDED.read_text())
LAST_BIT = json.loads(EXACT.read_text())


def test_every_case_is_recorded_and_nothing_else():
    """But for methods that nobody has recorded yet."""
    assert list(TRACES) == [c for c in CASES if c in TRACES or c not in METHODS]
    assert all(len(recorded["losses"]) == STEPS for recorded in TRACES.values())


@pytest.mark.parametrize("case", TRACES)
def test_three_steps_give_the_recorded_losses_and_weights(case):
    found, recorded = trace(case), TRACES[case]
    assert found["losses"] == pytest.approx(recorded["losses"], rel=1e-9)
    assert found["sums"] == pytest.approx(recorded["sums"], rel=1e-9)
    if LAST_BIT["recorded_on"] == processor():
        assert found == LAST_BIT["traces"][case]
