"""Counter-based random numbers that do not depend on when or where they are sampled.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") in int64
tensor operations, and on CUDA devices in one kernel with the same bits. A number is a pure
function of (key, image index, column, `at`): batch splits, workers, processes and restarts cannot
change it.
"""

import hashlib
import importlib.util
import math
import os
import shutil
from functools import cache, lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

Key = tuple[int, int]
Integers = npt.NDArray[np.int64]  # small arrays: an operation of torch takes five times as long

MASK = 0xFFFFFFFF
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)


@runtime_checkable
class RandomDraws(Protocol):
    """Random numbers that depend only on the step and the image; a Moment provides them."""

    def uniform(self, name: str, x: Tensor, count: int) -> Float64[Tensor, "n count"]:
        """Return one row for each image of x."""
        ...

    def permutation(self, name: str, n: int, device: torch.device) -> Int64[Tensor, " n"]:
        """Return one order, the same on every process."""
        ...


def key(seed: int, *names: int | str) -> Key:
    """Hash a seed and the names of a random stream to two 32-bit words."""
    digest = hashlib.blake2b(repr((int(seed), *names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


# Same as torch.compiler.assume_constant_result (hash while tracing), without importing the
# compiler, which would add seconds to every command.
key._dynamo_marked_constant = True  # type: ignore[attr-defined]


def philox(key: Key, counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Return four 32-bit words, stored in int64, for each counter of four 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # Subtract 2**32 from the multiplier and add it back to the upper half, so that no signed
        # product overflows: compilers may assume that none does and drop a mask.
        p0, p1 = c0 * (MULTIPLIERS[0] - 2**32), c2 * (MULTIPLIERS[1] - 2**32)
        c0, c1, c2, c3 = (
            ((p1 >> 32) + c2) ^ c1 ^ k0,
            p1 & MASK,
            ((p0 >> 32) + c0) ^ c3 ^ k1,
            p0 & MASK,
        )
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return c0, c1, c2, c3


def bits(
    key: Key, index: Int64[Tensor, " n"], count: int, at: int | Tensor = 0
) -> Int64[Tensor, "n count"]:
    """Return `count` words in [0, 2**32) per index; `at` is a step, an epoch or zero."""
    if use_triton(index):
        from selfsight.triton_kernels.philox import launch_philox

        return launch_philox(key, index, count, at, torch.int64)
    blocks = -(-count // 4)
    column = torch.arange(blocks, device=index.device).expand(len(index), blocks)
    row = index[:, None].expand_as(column)
    step = torch.zeros_like(column) + (at & MASK)
    words = philox(key, (row & MASK, (row >> 32) & MASK, column, step))
    return torch.stack(words, dim=-1).reshape(len(index), 4 * blocks)[:, :count]


def uniform(
    key: Key, index: Int64[Tensor, " n"], count: int, at: int | Tensor = 0
) -> Float64[Tensor, "n count"]:
    """Return `count` numbers in [0, 1) per index."""
    if use_triton(index):
        from selfsight.triton_kernels.philox import launch_philox

        return launch_philox(key, index, count, at, torch.float64)
    return bits(key, index, count, at).double() * 2.0**-32


def normal(
    key: Key, index: Int64[Tensor, " n"], count: int, at: int | Tensor = 0
) -> Float64[Tensor, "n count"]:
    """Return `count` standard normal numbers per index (Box and Muller)."""
    half = -(-count // 2)
    u = uniform(key, index, 2 * half, at)
    radius = (-2 * torch.log(u[:, :half] + 2.0**-33)).sqrt()
    angle = 2 * math.pi * u[:, half:]
    return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :count]


def permutation(
    key: Key, n: int, at: int | Tensor = 0, device: torch.device | str | None = None
) -> Int64[Tensor, " n"]:
    """Return a permutation of n indices, by sorting random words."""
    words = bits(key, torch.arange(n, device=device), 1, at)[:, 0]
    return torch.sort(words, stable=True).indices


def shuffled(key: Key, n: int, position: Int64[Tensor, " m"], at: int = 0) -> Int64[Tensor, " m"]:
    """Return the image at each position of a shuffled order of n images, which is never stored.

    A Feistel network permutes the numbers below the next power of four, and is applied again to
    results that are n or more.
    """
    half = max(1, -(-max(n - 1, 1).bit_length() // 2))
    rounds = _round_keys(key, at)
    x = _feistel(position.numpy(), rounds, half)
    while len(outside := (x >= n).nonzero()[0]):
        x[outside] = _feistel(x[outside], rounds, half)
    return torch.from_numpy(x)


@lru_cache(maxsize=64)  # the same in every step of an epoch
def _round_keys(key: Key, at: int) -> tuple[int, ...]:
    return tuple(bits(key, torch.arange(6), 1, at)[:, 0].tolist())


def use_triton(x: Tensor) -> bool:
    """Return whether to use a Triton kernel; torch's compiler fuses the operations itself."""
    return x.device.type == "cuda" and not torch.compiler.is_compiling() and has_triton()


@cache
def has_triton() -> bool:
    """Return whether Triton is installed and finds the C compiler that it needs."""
    compilers = (os.environ.get("CC", ""), "gcc", "clang")
    return importlib.util.find_spec("triton") is not None and any(map(shutil.which, compilers))


def _feistel(x: Integers, rounds: tuple[int, ...], half: int) -> Integers:
    """Permute the numbers of 2 * half bits."""
    mask = (1 << half) - 1
    left, right = x >> half, x & mask
    for k in rounds:
        left, right = right, left ^ (_mix(right + k) & mask)
    return (left << half) | right


def _mix(x: Integers) -> Integers:
    """Scramble 32 bits (the finalizer of MurmurHash3); products wrap, their lower half is used."""
    x = x & MASK
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & MASK
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & MASK
    return x ^ (x >> 16)
