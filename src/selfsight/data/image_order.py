"""The order of images: computed from (seed, epoch, position), never stored or buffered.

Images that are single files are shuffled freely. Images in shards are read in chunks of neighbors:
the chunks are permuted, and each lane of the batch reads a few of them at a time (its window) and
permutes their images. A lane is a fixed range of positions in the global batch, so processes
read different chunks, and the order is the same for any number of processes.

Chunks of equal size are located by arithmetic. Chunks of different sizes (row groups) are
concatenated in an order that is permuted again in each epoch, and each lane reads an equal part.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from selfsight import rng

MAX_LANES = 64  # up to so many processes read disjoint chunks
WINDOW_CHUNKS = 4  # chunks in the window of a lane
MAX_WINDOW = 16384  # images in the windows of all lanes


@dataclass(frozen=True, eq=False)
class Shards:
    """First image of each shard; shards are cut into chunks that never cross shard boundaries."""

    starts: Int64[np.ndarray, " shards_1"]
    chunk_size: int  # largest number of images in a chunk

    @cached_property
    def uneven(self) -> bool:
        """Whether each shard is one chunk and their sizes differ, ignoring a smaller last one."""
        counts = np.diff(self.starts)
        counts = counts[counts > 0]
        return bool((counts <= self.chunk_size).all() and (counts[:-1] < self.chunk_size).any())

    @cached_property
    def mean_chunk_size(self) -> int:
        """Average number of images in a chunk."""
        if not self.uneven:
            return self.chunk_size
        return -(-int(self.starts[-1]) // int((np.diff(self.starts) > 0).sum()))

    def chunk_of(self, image: int) -> tuple[int, int]:
        """First image of the chunk that holds an image, and the first image after the chunk."""
        shard = int(self.starts.searchsorted(image, side="right")) - 1
        first = int(self.starts[shard])
        first += (image - first) // self.chunk_size * self.chunk_size
        return first, min(first + self.chunk_size, int(self.starts[shard + 1]))

    def images(self, place: Int64[Tensor, " m"]) -> Int64[Tensor, " m"]:
        """Image at each place, if full chunks of all shards come first, then the rest of each."""
        counts, full_before, rest_before = self._cumulative_counts
        v = place.numpy()
        chunk, offset = np.divmod(v, self.chunk_size)
        shard = np.searchsorted(full_before, chunk, side="right").clip(1, len(counts)) - 1
        in_chunk = self.starts[shard] + (chunk - full_before[shard]) * self.chunk_size + offset
        rest = v - full_before[-1] * self.chunk_size
        shard = np.searchsorted(rest_before, rest, side="right").clip(1, len(counts)) - 1
        in_rest = self.starts[shard + 1] - counts[shard] % self.chunk_size
        in_rest = in_rest + rest - rest_before[shard]
        return torch.from_numpy(np.where(rest < 0, in_chunk, in_rest))

    @cached_property
    def _cumulative_counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Images of each shard; full chunks, and remaining images, before each shard."""
        counts = np.diff(self.starts)
        full_before = np.concatenate([[0], np.cumsum(counts // self.chunk_size)])
        return counts, full_before, np.concatenate([[0], np.cumsum(counts % self.chunk_size)])


class Order:
    """Maps each position of an epoch to an image."""

    def __init__(
        self, *, count: int, batch_size: int, seed: int, shards: Shards | None = None
    ) -> None:
        self.count, self.batch_size, self.seed, self.shards = count, batch_size, seed, shards
        self.key = rng.key(seed, "order")
        self.layout: tuple[int, Tensor, Tensor] | None = None

    def images(self, epoch: int, position: Int64[Tensor, " m"]) -> Int64[Tensor, " m"]:
        """Images at these positions; those of all positions of an epoch are a permutation."""
        if self.shards is None or self.shards.chunk_size == 1:
            return rng.shuffled(self.key, self.count, position, at=epoch)
        if self.shards.uneven:
            return self._uneven_order(epoch, position)
        return self.shards.images(self._even_order(epoch, position))

    @cached_property
    def lanes(self) -> tuple[int, int]:
        """Number of lanes, and of chunks in the window of each."""
        assert self.shards is not None
        lanes, chunks = _largest_divisor(self.batch_size, MAX_LANES), WINDOW_CHUNKS
        while lanes * chunks * self.shards.mean_chunk_size > MAX_WINDOW and lanes * chunks > 1:
            fewer = _largest_divisor(self.batch_size, lanes // 2) if chunks == 1 else lanes
            lanes, chunks = fewer, max(1, chunks // 2)
        return lanes, chunks

    def _even_order(self, epoch: int, position: Tensor) -> Tensor:
        """Place of each position among the full chunks and the rests of shards."""
        assert self.shards is not None
        (lanes, chunks), size = self.lanes, self.shards.chunk_size
        share = self.batch_size // lanes
        length = self.count // (size * lanes * chunks) * chunks * size  # images of a lane
        steps = length // share
        ended = position - steps * self.batch_size  # images outside all lanes come last, shuffled
        rest = self.count - steps * self.batch_size
        last = rng.shuffled(rng.key(self.seed, "rest"), max(rest, 1), ended.clamp(min=0), at=epoch)
        step, place = position // self.batch_size, position % self.batch_size
        lane, at = place // share, step * share + place % share
        left = length - steps * share  # images of each lane
        lane = torch.where(ended < 0, lane, last // max(left, 1))
        at = torch.where(ended < 0, at, steps * share + last % max(left, 1))
        in_lane = (ended < 0) | (last < lanes * left)
        slot, offset = self._in_lane(epoch, lane.clamp(max=lanes - 1), at, length)
        outside = last + lanes * (length - left)
        slot = torch.where(in_lane, slot, outside // size)
        offset = torch.where(in_lane, offset, outside % size)
        full = self.count // size
        key = rng.key(self.seed, "pieces")
        shuffled = rng.shuffled(key, max(full, 1), slot.clamp(max=max(full - 1, 0)), at=epoch)
        return torch.where(slot < full, shuffled, slot) * size + offset

    def _in_lane(self, epoch: int, lane: Tensor, at: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Chunk among the permuted ones, and image in the chunk."""
        assert self.shards is not None
        (lanes, chunks), size = self.lanes, self.shards.chunk_size
        window = chunks * size
        # Lanes start at different places of their windows, which spreads reads evenly over time.
        at = (at + lane * window // lanes) % max(length, 1)
        number = at // window * lanes + lane
        key = rng.key(self.seed, "window")
        shift = rng.bits(key, number, 1, at=epoch)[:, 0]
        inner = rng.shuffled(key, window, (at + shift) % window, at=epoch)
        return number * chunks + inner // size, inner % size

    def _uneven_order(self, epoch: int, position: Tensor) -> Tensor:
        (lanes, chunks), batch = self.lanes, self.batch_size
        firsts, begins = self._chunk_layout(epoch)
        if len(firsts) <= lanes * chunks:  # all chunks are in the windows
            return rng.shuffled(self.key, self.count, position, at=epoch)
        share = batch // lanes
        length = self.count // batch * share  # images of a lane; the remainder is one more lane
        step, place = position // batch, position % batch
        at = place // share * length + step * share + place % share
        at = torch.where(step < self.count // batch, at, position)
        lane = (at // max(length, 1)).clamp(max=lanes)
        window = (torch.searchsorted(begins, at, right=True) - 1) // chunks
        # A window that reaches into the next lane is cut: at most one chunk is read twice.
        low = torch.maximum(begins[window * chunks], lane * length)
        high = begins[((window + 1) * chunks).clamp(max=len(firsts))]
        end = torch.where(lane < lanes, (lane + 1) * length, self.count)
        size = torch.minimum(high, end) - low
        key = rng.key(self.seed, "window")
        shift = rng.bits(key, window, 1, at=epoch)[:, 0]
        at = low + _shuffle_each(key, size, (at - low + shift) % size, epoch)
        chunk = torch.searchsorted(begins, at, right=True) - 1
        return firsts[chunk] + at - begins[chunk]

    def _chunk_layout(self, epoch: int) -> tuple[Tensor, Tensor]:
        """First image of each chunk in the epoch's order, and the position where each begins."""
        assert self.shards is not None
        if self.layout is None or self.layout[0] != epoch:
            counts = torch.from_numpy(np.diff(self.shards.starts))
            number = counts.nonzero()[:, 0]
            key = rng.key(self.seed, "pieces")
            number = number[rng.shuffled(key, len(number), torch.arange(len(number)), epoch)]
            begins = torch.cat([torch.zeros(1, dtype=torch.int64), counts[number].cumsum(0)])
            self.layout = epoch, torch.from_numpy(self.shards.starts)[number], begins
        return self.layout[1:]


def _largest_divisor(number: int, limit: int) -> int:
    """The largest divisor that is at most `limit`."""
    return max(d for d in range(1, limit + 1) if number % d == 0)


def _shuffle_each(key: rng.Key, size: Tensor, position: Tensor, at: int) -> Tensor:
    """As `rng.shuffled`, with a different size of the permuted set for each position."""
    power = torch.bucketize(size, 4 ** torch.arange(31))
    out = torch.empty_like(position)
    for exponent in power.unique().tolist():
        same_power = (power == exponent).nonzero()[:, 0]
        x = rng.shuffled(key, 4**exponent, position[same_power], at)
        while len(outside := (x >= size[same_power]).nonzero()[:, 0]):
            x[outside] = rng.shuffled(key, 4**exponent, x[outside], at)
        out[same_power] = x
    return out
