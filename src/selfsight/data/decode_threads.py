"""One image decoded, or why not; and what threads that do so need to know."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from selfsight.data import cgroup_limits
from selfsight.data.decode import decode

Decoded = np.ndarray | str  # HWC pixels, or why there are none


def decoded(read: Callable[[], bytes | np.ndarray], *, store_size: int, channels: int) -> Decoded:
    """One image's pixels, or why it has none."""
    try:
        return decode(read(), store_size=store_size, channels=channels)
    except (OSError, ValueError) as error:
        return reason(error)


def reason(error: Exception) -> str:
    """Why an image could not be read, in words."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    strerror = getattr(error, "strerror", None)
    return str(strerror or error or type(error).__name__)


def num_workers() -> int:
    """As many threads as this process may use processors."""
    known = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
    return min(cores, cgroup_limits.processors() or cores)


def own_workers() -> int:
    """This process's share of them, where torchrun started several on the machine."""
    return max(1, num_workers() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


@contextmanager
def quiet() -> Iterator[None]:
    """Without Pillow's warnings of huge or odd files; what matters comes back as a reason.

    The filter belongs to the whole process, so it is set around threads, not within them.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\b")
        yield


def silence() -> None:
    """As `quiet`, for good: decoding that goes on in the background has no end to wait for."""
    warnings.filterwarnings("ignore", module=r"PIL\b")
