"""Compile the augmentation's kernels and import torch's compiler while images are opened.

In every process Triton first reads its library of 400 MB, whether its cache has the kernels or not.
"""

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from selfsight.compile_cache import persist_compile_cache
from selfsight.garbage_collection import no_garbage_collection
from selfsight.ragged_batch import Ragged
from selfsight.recipe import Recipe
from selfsight.stopwatch import Stopwatch
from selfsight.train.compile import is_compiled
from selfsight.train.step import compute_views

SIDE = 32  # of the black images: the kernels do not depend on their size or number


@contextlib.contextmanager
def prepare_kernels(recipe: Recipe, device: torch.device, clock: Stopwatch) -> Iterator[None]:
    """In a thread, prepare a GPU for the first step; at the end wait for it, but not in an error.

    The clock counts the wait as "kernels", and what the thread did as "meanwhile".
    """
    if device.type != "cuda":
        yield
        return
    if is_compiled(recipe, device):  # importing the compiler sets its folder if it is not set
        persist_compile_cache()
    with run_beside(clock) as start:
        start(lambda: compute_black_views(recipe, device))
        # Any optimizer needs it. The thread must not import it while another one might.
        import_quickly("torch._dynamo")
        start(lambda: import_quickly("torch._inductor.compile_fx"))
        yield


def import_quickly(name: str) -> None:
    """Import a module without garbage collection, which takes half of the time for a compiler."""
    with no_garbage_collection():
        importlib.import_module(name)


@contextlib.contextmanager
def run_beside(clock: Stopwatch) -> Iterator[Callable[[Callable[[], object]], object]]:
    """Give a function that starts others, one after the other in one thread.

    Their errors are ignored: training calls the same functions, and explains what they raise.
    """

    def run(function: Callable[[], object]) -> None:
        began = time.monotonic()
        with contextlib.suppress(Exception):
            function()
        clock.meanwhile += time.monotonic() - began

    thread = ThreadPoolExecutor(1, thread_name_prefix="kernels")
    try:
        yield lambda function: thread.submit(run, function)
    except BaseException:
        thread.shutdown(wait=False, cancel_futures=True)
        raise
    clock.lap("data")
    thread.shutdown()
    clock.lap("kernels")


def compute_black_views(recipe: Recipe, device: torch.device) -> list[torch.Tensor]:
    """Compute the recipe's views of two black images."""
    index = torch.arange(2, device=device)
    channels, dtype = recipe.data.channels, getattr(torch, recipe.data.dtype)
    pixels = torch.zeros(channels * SIDE**2, dtype=dtype, device=device)
    sizes = torch.full((2, 2), SIDE, device=device)
    images = Ragged(pixels, torch.zeros_like(index), sizes, channels, (SIDE, SIDE))
    return compute_views(recipe, images, index, 0)
