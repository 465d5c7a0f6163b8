"""Measure the speed of training on this machine and compare it with the bare backbone."""

from selfsight.bench.run_bench import run

__all__ = ["run"]
