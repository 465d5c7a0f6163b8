"""Record a function of tensors as a CUDA graph: a replay launches all of its kernels at once."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")
WARMUP_CALLS = 3  # before anything is recorded: compilers and libraries choose kernels


@functools.cache
def recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which this process records: cuBLAS keeps memory for each it has used."""
    return torch.cuda.Stream(device)


def record_graph(
    function: Callable[..., Result], tensors: list[Tensor], stream: torch.cuda.Stream
) -> Callable[..., Result] | None:
    """Return this function of tensors as a graph; None, with a warning, if it cannot be one.

    A replay copies its tensors into the recorded ones, and its result is valid until the next. The
    function must have run a few times on this stream before.
    """
    inputs = [x.clone() for x in tensors]
    graph = torch.cuda.CUDAGraph()
    try:
        # "thread_local": threads that load the next batches may use CUDA meanwhile.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            result = function(*inputs)
    except RuntimeError as error:
        warnings.warn(f"This step cannot be a CUDA graph: {error}", stacklevel=2)
        return None

    def replay(*tensors: Tensor) -> Result:
        torch._foreach_copy_(inputs, tensors)
        graph.replay()
        return result

    return replay


@contextlib.contextmanager
def on_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Run on a separate stream, which recording requires; None: on the current one."""
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


class RecordedFunction:
    """A function of tensors of the same shapes in every call, a graph after the first calls."""

    def __init__(self, function: Callable[..., object], device: torch.device) -> None:
        self.function, self.calls = function, 0
        self.stream = recording_stream(device)

    def __call__(self, *tensors: Tensor) -> None:
        """Run it on a separate stream, for which the current one waits."""
        self.calls += 1
        with on_stream(self.stream):
            if self.calls == WARMUP_CALLS + 1:
                recorded = record_graph(self.function, list(tensors), self.stream)
                self.function = recorded or self.function
            self.function(*tensors)
