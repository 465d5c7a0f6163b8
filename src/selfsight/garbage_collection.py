"""Imports without garbage collection, which takes a fifth to a half of their time.

Every collection looks at all objects that may be garbage. Imports create half a million and leave
hardly any garbage.
"""

import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect no garbage meanwhile. Threads may do so at the same time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def frozen_imports() -> Iterator[None]:
    """Collect no garbage meanwhile, and never among what exists at the end.

    Only in a process that has not imported torch: what is garbage by then would remain.
    """
    is_new = "torch" not in sys.modules
    with no_garbage_collection():
        yield
        if is_new:
            gc.freeze()
