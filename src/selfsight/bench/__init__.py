"""Measure the speed of training on this machine and compare it with the bare backbone."""

from selfsight.bench.breakdown import Breakdown, Timing, describe, measure_breakdown
from selfsight.bench.command import run
from selfsight.bench.scaling import ScalingPoint, measure_scaling

__all__ = [
    "Breakdown",
    "ScalingPoint",
    "Timing",
    "describe",
    "measure_breakdown",
    "measure_scaling",
    "run",
]
