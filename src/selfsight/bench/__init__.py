"""How fast each part of training is on this machine, beside what its network alone allows."""

from selfsight.bench.breakdown import Figures, Part, bench, words
from selfsight.bench.command import run
from selfsight.bench.scaling import Cost, costs

__all__ = ["Cost", "Figures", "Part", "bench", "costs", "run", "words"]
