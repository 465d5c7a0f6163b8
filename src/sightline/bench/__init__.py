"""How fast each part of training is on this machine, beside what its network alone allows."""

from sightline.bench.command import run
from sightline.bench.growth import Cost, costs
from sightline.bench.measure import Figures, Part, bench, words

__all__ = ["Cost", "Figures", "Part", "bench", "costs", "run", "words"]
