"""In which order pictures come: computed from (seed, epoch, position), never stored or buffered.

Pictures that lie one by one are shuffled all together. Those that lie in shards are read in pieces
of neighbours: pieces are permuted, each lane of the batch takes a few of them at a time (its
window) and permutes the pictures in it. Lanes belong to places of the global batch, so processes
read different pieces, and the order is the same for any number of them.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from sightline import random

LANES = 64  # at most; up to so many processes read disjoint pieces
PIECES = 4  # in the window of a lane
WINDOW = 16384  # pictures in the windows of all lanes, at most


class Shards(NamedTuple):
    """Where shards begin, cut into pieces of neighbours that never cross from one to the next."""

    starts: Int64[np.ndarray, " shards_1"]
    piece: int

    def run(self, picture: int) -> tuple[int, int]:
        """First picture of the piece around a picture, and the first behind it."""
        shard = int(np.searchsorted(self.starts, picture, side="right")) - 1
        first = int(self.starts[shard])
        first += (picture - first) // self.piece * self.piece
        return first, min(first + self.piece, int(self.starts[shard + 1]))

    def pictures(self, place: Int64[Tensor, " m"]) -> Int64[Tensor, " m"]:
        """Number the pictures anew: whole pieces of all shards first, then what is left of each."""
        rows = np.diff(self.starts)
        whole = np.concatenate([[0], np.cumsum(rows // self.piece)])
        rests = np.concatenate([[0], np.cumsum(rows % self.piece)])
        v = place.numpy()
        k, offset = np.divmod(v, self.piece)
        shard = np.searchsorted(whole, k, side="right").clip(1, len(rows)) - 1
        inside = self.starts[shard] + (k - whole[shard]) * self.piece + offset
        rest = v - whole[-1] * self.piece
        shard = np.searchsorted(rests, rest, side="right").clip(1, len(rows)) - 1
        behind = self.starts[shard + 1] - rows[shard] % self.piece + rest - rests[shard]
        return torch.from_numpy(np.where(rest < 0, inside, behind))


class Order:
    """Which picture stands at each position of an epoch."""

    def __init__(
        self, *, count: int, batch_size: int, seed: int, shards: Shards | None = None
    ) -> None:
        self.count, self.batch_size, self.seed, self.shards = count, batch_size, seed, shards
        self.key = random.key(seed, "order")

    def pictures(self, epoch: int, position: Int64[Tensor, " m"]) -> Int64[Tensor, " m"]:
        """Pictures at these positions; those of one epoch are a permutation."""
        if self.shards is None or self.shards.piece == 1:
            return random.shuffled(self.key, self.count, position, at=epoch)
        return self.shards.pictures(self._place(epoch, position))

    @cached_property
    def lanes(self) -> tuple[int, int]:
        """Number of lanes, and pieces in the window of each."""
        assert self.shards is not None
        lanes, pieces = min(LANES, self.batch_size & -self.batch_size), PIECES
        while lanes * pieces * self.shards.piece > WINDOW and lanes * pieces > 1:
            lanes, pieces = (lanes, pieces // 2) if pieces > 1 else (lanes // 2, pieces)
        return lanes, pieces

    def _place(self, epoch: int, position: Tensor) -> Tensor:
        assert self.shards is not None
        (lanes, pieces), size = self.lanes, self.shards.piece
        share = self.batch_size // lanes
        length = self.count // (size * lanes * pieces) * pieces * size  # of a lane, in pictures
        steps = length // share
        ended = position - steps * self.batch_size  # what no lane holds comes last, shuffled
        rest = self.count - steps * self.batch_size
        last = random.shuffled(
            random.key(self.seed, "rest"), max(rest, 1), ended.clamp(min=0), at=epoch
        )
        step, place = position // self.batch_size, position % self.batch_size
        lane, at = place // share, step * share + place % share
        left = length - steps * share  # of each lane
        lane = torch.where(ended < 0, lane, last // max(left, 1))
        at = torch.where(ended < 0, at, steps * share + last % max(left, 1))
        in_lane = (ended < 0) | (last < lanes * left)
        slot, offset = self._in_lane(epoch, lane.clamp(max=lanes - 1), at, length)
        behind = last + lanes * (length - left)
        slot = torch.where(in_lane, slot, behind // size)
        offset = torch.where(in_lane, offset, behind % size)
        whole = self.count // size
        order = random.key(self.seed, "pieces")
        chosen = random.shuffled(order, max(whole, 1), slot.clamp(max=max(whole - 1, 0)), at=epoch)
        return torch.where(slot < whole, chosen, slot) * size + offset

    def _in_lane(self, epoch: int, lane: Tensor, at: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Which piece of the permuted ones, and which picture in it."""
        assert self.shards is not None
        (lanes, pieces), size = self.lanes, self.shards.piece
        window = pieces * size
        # Lanes begin at different places of their windows, so that reads come evenly.
        at = (at + lane * window // lanes) % max(length, 1)
        number = at // window * lanes + lane
        key = random.key(self.seed, "window")
        turn = random.bits(key, number, 1, at=epoch)[:, 0]
        inner = random.shuffled(key, window, (at + turn) % window, at=epoch)
        return number * pieces + inner // size, inner % size
