"""How fast each part of training is on this machine, beside what its network alone allows."""

from sightline.bench.command import run
from sightline.bench.measure import Figures, Part, bench, words

__all__ = ["Figures", "Part", "bench", "run", "words"]
