"""All time belongs to a phase."""

import subprocess
import sys
import time

import pytest

from selfsight.stopwatch import PHASES, Stopwatch, describe_seconds


def test_phases_add_up_to_the_time_since_the_beginning():
    began = time.monotonic() - 5
    clock = Stopwatch(began)
    for phase in ("steps", "evaluation", "steps"):
        time.sleep(0.02)
        clock.lap(phase)
    record = clock.record()
    assert record["imports"] == pytest.approx(5, abs=0.05) and record["steps"] >= 0.04
    assert record["total"] == pytest.approx(time.monotonic() - began, abs=0.02)
    assert sum(record[phase] for phase in PHASES) == pytest.approx(record["total"], abs=0.05)
    text = "Time: 5.1 s (imports 5.0, steps 0.1)."
    assert describe_seconds(dict.fromkeys(PHASES, 0.01) | ROUNDED) == text


ROUNDED = {"imports": 5.0, "steps": 0.06, "total": 5.06}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says when a process began")
def test_a_process_began_when_it_was_started():
    code = "import time; from selfsight.stopwatch import process_began; time.sleep(0.3);"
    code += "print(process_began(), time.monotonic())"
    before = time.monotonic()
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    began, end = map(float, out.stdout.split())
    assert before - 0.05 <= began <= end - 0.3  # the kernel counts in hundredths of a second
