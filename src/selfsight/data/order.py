"""In which order images come: computed from (seed, epoch, position), never stored or buffered.

Images that lie one by one are shuffled all together. Those that lie in shards are read in pieces
of neighbors: pieces are permuted, each lane of the batch takes a few of them at a time (its
window) and permutes the images in it. Lanes belong to places of the global batch, so processes
read different pieces, and the order is the same for any number of them.

Pieces of one size are counted; those of any sizes (row groups) are laid out in a row, permuted anew
in each epoch, of which each lane takes a part of the same length.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from selfsight import rng

LANES = 64  # at most; up to so many processes read disjoint pieces
PIECES = 4  # in the window of a lane
WINDOW = 16384  # images in the windows of all lanes, at most


@dataclass(frozen=True, eq=False)
class Shards:
    """Where shards begin, cut into pieces of neighbors that never cross from one to the next."""

    starts: Int64[np.ndarray, " shards_1"]
    piece: int  # images, at most

    @cached_property
    def uneven(self) -> bool:
        """Whether each shard is one piece, and they differ: a smaller last one is no difference."""
        rows = np.diff(self.starts)
        rows = rows[rows > 0]
        return bool((rows <= self.piece).all() and (rows[:-1] < self.piece).any())

    @cached_property
    def typical(self) -> int:
        """Images of a piece, on average."""
        if not self.uneven:
            return self.piece
        return -(-int(self.starts[-1]) // int((np.diff(self.starts) > 0).sum()))

    def run(self, image: int) -> tuple[int, int]:
        """First image of the piece around an image, and the first behind it."""
        shard = int(self.starts.searchsorted(image, side="right")) - 1
        first = int(self.starts[shard])
        first += (image - first) // self.piece * self.piece
        return first, min(first + self.piece, int(self.starts[shard + 1]))

    def images(self, place: Int64[Tensor, " m"]) -> Int64[Tensor, " m"]:
        """Number the images anew: whole pieces of all shards first, then what is left of each."""
        rows, whole, rests = self._counted
        v = place.numpy()
        k, offset = np.divmod(v, self.piece)
        shard = np.searchsorted(whole, k, side="right").clip(1, len(rows)) - 1
        inside = self.starts[shard] + (k - whole[shard]) * self.piece + offset
        rest = v - whole[-1] * self.piece
        shard = np.searchsorted(rests, rest, side="right").clip(1, len(rows)) - 1
        behind = self.starts[shard + 1] - rows[shard] % self.piece + rest - rests[shard]
        return torch.from_numpy(np.where(rest < 0, inside, behind))

    @cached_property
    def _counted(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Images of each shard; whole pieces, and images that are left, before each."""
        rows = np.diff(self.starts)
        whole = np.concatenate([[0], np.cumsum(rows // self.piece)])
        return rows, whole, np.concatenate([[0], np.cumsum(rows % self.piece)])


class Order:
    """Which image stands at each position of an epoch."""

    def __init__(
        self, *, count: int, batch_size: int, seed: int, shards: Shards | None = None
    ) -> None:
        self.count, self.batch_size, self.seed, self.shards = count, batch_size, seed, shards
        self.key = rng.key(seed, "order")
        self.laid_out: tuple[int, Tensor, Tensor] | None = None

    def images(self, epoch: int, position: Int64[Tensor, " m"]) -> Int64[Tensor, " m"]:
        """Images at these positions; those of one epoch are a permutation."""
        if self.shards is None or self.shards.piece == 1:
            return rng.shuffled(self.key, self.count, position, at=epoch)
        if self.shards.uneven:
            return self._of_uneven(epoch, position)
        return self.shards.images(self._place(epoch, position))

    @cached_property
    def lanes(self) -> tuple[int, int]:
        """Number of lanes, and pieces in the window of each."""
        assert self.shards is not None
        lanes, pieces = _divisor(self.batch_size, LANES), PIECES
        while lanes * pieces * self.shards.typical > WINDOW and lanes * pieces > 1:
            fewer = _divisor(self.batch_size, lanes // 2) if pieces == 1 else lanes
            lanes, pieces = fewer, max(1, pieces // 2)
        return lanes, pieces

    def _place(self, epoch: int, position: Tensor) -> Tensor:
        assert self.shards is not None
        (lanes, pieces), size = self.lanes, self.shards.piece
        share = self.batch_size // lanes
        length = self.count // (size * lanes * pieces) * pieces * size  # of a lane, in images
        steps = length // share
        ended = position - steps * self.batch_size  # what no lane holds comes last, shuffled
        rest = self.count - steps * self.batch_size
        last = rng.shuffled(rng.key(self.seed, "rest"), max(rest, 1), ended.clamp(min=0), at=epoch)
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
        order = rng.key(self.seed, "pieces")
        chosen = rng.shuffled(order, max(whole, 1), slot.clamp(max=max(whole - 1, 0)), at=epoch)
        return torch.where(slot < whole, chosen, slot) * size + offset

    def _in_lane(self, epoch: int, lane: Tensor, at: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Which piece of the permuted ones, and which image in it."""
        assert self.shards is not None
        (lanes, pieces), size = self.lanes, self.shards.piece
        window = pieces * size
        # Lanes begin at different places of their windows, so that reads come evenly.
        at = (at + lane * window // lanes) % max(length, 1)
        number = at // window * lanes + lane
        key = rng.key(self.seed, "window")
        turn = rng.bits(key, number, 1, at=epoch)[:, 0]
        inner = rng.shuffled(key, window, (at + turn) % window, at=epoch)
        return number * pieces + inner // size, inner % size

    def _of_uneven(self, epoch: int, position: Tensor) -> Tensor:
        (lanes, pieces), batch = self.lanes, self.batch_size
        firsts, begins = self._laid_out(epoch)
        if len(firsts) <= lanes * pieces:  # all are in the windows
            return rng.shuffled(self.key, self.count, position, at=epoch)
        share = batch // lanes
        length = self.count // batch * share  # of a lane; what no batch holds is one more lane
        step, place = position // batch, position % batch
        at = place // share * length + step * share + place % share
        at = torch.where(step < self.count // batch, at, position)
        lane = (at // max(length, 1)).clamp(max=lanes)
        window = (torch.searchsorted(begins, at, right=True) - 1) // pieces
        # A window that reaches into the next lane is cut, so that one piece at most is read twice.
        low = torch.maximum(begins[window * pieces], lane * length)
        high = begins[((window + 1) * pieces).clamp(max=len(firsts))]
        end = torch.where(lane < lanes, (lane + 1) * length, self.count)
        size = torch.minimum(high, end) - low
        key = rng.key(self.seed, "window")
        turn = rng.bits(key, window, 1, at=epoch)[:, 0]
        at = low + _shuffled(key, size, (at - low + turn) % size, epoch)
        piece = torch.searchsorted(begins, at, right=True) - 1
        return firsts[piece] + at - begins[piece]

    def _laid_out(self, epoch: int) -> tuple[Tensor, Tensor]:
        """First image of each piece in an epoch's order, and where in that row each begins."""
        assert self.shards is not None
        if self.laid_out is None or self.laid_out[0] != epoch:
            rows = torch.from_numpy(np.diff(self.shards.starts))
            number = rows.nonzero()[:, 0]
            order = rng.key(self.seed, "pieces")
            number = number[rng.shuffled(order, len(number), torch.arange(len(number)), epoch)]
            begins = torch.cat([torch.zeros(1, dtype=torch.int64), rows[number].cumsum(0)])
            self.laid_out = epoch, torch.from_numpy(self.shards.starts)[number], begins
        return self.laid_out[1:]


def _divisor(number: int, most: int) -> int:
    """The largest that is not above a bound."""
    return max(one for one in range(1, most + 1) if number % one == 0)


def _shuffled(key: rng.Key, size: Tensor, position: Tensor, at: int) -> Tensor:
    """As `rng.shuffled`, with a number of things for each position."""
    power = torch.bucketize(size, 4 ** torch.arange(31))
    out = torch.empty_like(position)
    for one in power.unique().tolist():
        here = (power == one).nonzero()[:, 0]
        x = rng.shuffled(key, 4**one, position[here], at)
        while len(outside := (x >= size[here]).nonzero()[:, 0]):
            x[outside] = rng.shuffled(key, 4**one, x[outside], at)
        out[here] = x
    return out
