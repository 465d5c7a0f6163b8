import contextlib
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from selfsight import record_graph
from selfsight.record_graph import WARMUP_CALLS, RecordedFunction


@pytest.fixture
def cuda(monkeypatch):
    """What recording uses of CUDA; a graph does nothing, and `events` lists what was called."""
    events, kind = [], torch.cuda.Stream

    def stream(device=None):
        it = mock.Mock(spec=kind)
        it.wait_stream = lambda other: events.append("wait")
        return it

    @contextlib.contextmanager
    def graph(recorded, stream, capture_error_mode):
        events.append("record")
        yield

    recorded = SimpleNamespace(replay=lambda: events.append("replay"))
    monkeypatch.setattr(record_graph, "recording_stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: recorded)
    return events


def test_a_function_runs_some_times_and_is_replayed_then_with_each_calls_tensors(cuda):
    seen = []
    double = RecordedFunction(lambda x, y: seen.append((x, y)), torch.device("cuda"))
    for i in range(WARMUP_CALLS + 3):
        double(torch.full((2,), float(i)), torch.tensor(i))
    assert len(seen) == WARMUP_CALLS + 1  # the last call was recorded
    assert [e for e in cuda if e != "wait"] == ["record", "replay", "replay", "replay"]
    inputs = seen[-1]
    assert inputs[0].tolist() == [WARMUP_CALLS + 2] * 2 and inputs[1] == WARMUP_CALLS + 2
    assert cuda.count("wait") == 2 * (WARMUP_CALLS + 3)


def test_a_process_records_on_one_stream_of_each_device(monkeypatch):
    """cuBLAS keeps memory for each stream, so that every training would leave some more."""
    kind = torch.cuda.Stream
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: mock.Mock(spec=kind))
    record_graph.recording_stream.cache_clear()
    devices = [torch.device("cuda", i) for i in (0, 1, 0)]
    try:
        first, other, again = map(record_graph.recording_stream, devices)
    finally:
        record_graph.recording_stream.cache_clear()
    assert first is again and first is not other


def test_what_cannot_be_recorded_runs_as_before(cuda, monkeypatch):
    @contextlib.contextmanager
    def fail(*args, **settings):
        raise torch.OutOfMemoryError("too large")
        yield

    monkeypatch.setattr(record_graph.torch.cuda, "graph", fail)
    seen = []
    function = RecordedFunction(seen.append, torch.device("cuda"))
    for i in range(WARMUP_CALLS):
        function(torch.tensor(i))
    with pytest.warns(UserWarning, match="cannot be a CUDA graph: too large"):
        function(torch.tensor(WARMUP_CALLS))
    function(torch.tensor(WARMUP_CALLS + 1))
    assert [int(x) for x in seen] == list(range(WARMUP_CALLS + 2))
