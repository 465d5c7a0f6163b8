"""Processes give what `decode` gives, and their end is no harm."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from selfsight.data import decode_threads, load, open_source, workers
from selfsight.data.decode import decode
from selfsight.data.loader import Loader
from selfsight.data.stream import Streamed
from selfsight.data.workers import Decoders
from tests.data.made import encoded, pixels, png, write

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="memory is shared so on Linux alone; threads decode"
)
HOW = {"store_size": 8, "channels": 3}


@pytest.fixture(scope="module")
def two():
    made = Decoders(2)
    assert made.wait()
    yield made
    made.close()
    assert made.started.returncode == 0


@pytest.fixture
def used(two, monkeypatch):
    """As on a machine with more cores, and for few images too."""
    monkeypatch.setattr(workers, "MANY", 1)
    monkeypatch.setattr(workers, "FEW", 1)
    monkeypatch.setattr(workers, "shared", lambda cores: two)
    asked = []
    call = Decoders.__call__
    monkeypatch.setattr(
        Decoders, "__call__", lambda self, x, **how: asked.extend(x) or call(self, x, **how)
    )
    return asked


def test_paths_bytes_and_pixels_become_what_decode_makes_of_them(two, tmp_path):
    file = write(tmp_path / "a.png", pixels(12, 16))
    other = png(pixels(20, 10, seed=1))
    found = two([str(file), other, pixels(9, 9, seed=2), str(tmp_path / "none"), b"no"], **HOW)
    for ours, handed in zip(found, (file.read_bytes(), other, pixels(9, 9, seed=2)), strict=False):
        np.testing.assert_array_equal(ours.transpose(1, 2, 0), decode(handed, **HOW))
    assert found[3] == "there is no such file" and "not an image" in found[4]
    assert two([], **HOW) == []


def test_results_are_the_askers_own(two):
    first = two([png(pixels(seed=1))], **HOW)[0]
    before = first.copy()
    for seed in range(2, 6):
        two([png(pixels(seed=seed))], **HOW)
    np.testing.assert_array_equal(first, before)


def test_more_results_may_be_held_than_there_is_room_for(two):
    files = [png(pixels(seed=seed)) for seed in range(4 * workers.SLOTS)]
    held = [two([file], **HOW)[0] for file in files]
    for ours, file in zip(held, files, strict=True):
        np.testing.assert_array_equal(ours.transpose(1, 2, 0), decode(file, **HOW))
    del ours, held
    both = [two.free.get_nowait() for _ in range(2)]
    assert [worker.free.qsize() for worker in both] == [workers.SLOTS - 1] * 2
    for worker in both:
        two.free.put(worker)


def test_what_does_not_fit_in_the_room_comes_all_the_same(monkeypatch):
    monkeypatch.setattr(workers, "ROOM", 8 * 4096)
    made = Decoders(1)
    assert made.wait()
    files = [png(pixels(30, 30, seed=i)) for i in range(3)]
    for ours, file in zip(made(files, store_size=30, channels=3), files, strict=True):
        expected = decode(file, store_size=30)
        np.testing.assert_array_equal(ours.transpose(1, 2, 0), expected)
    made.close()


def test_a_process_that_dies_is_done_without():
    made = Decoders(1)
    assert made.wait()
    pid = made.started.pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    with pytest.warns(UserWarning, match="1 of the 1 processes .* 0 are left"):
        assert made([png(pixels())], **HOW)[0].shape == (3, 8, 11)
    assert made([png(pixels())], **HOW)[0].shape == (3, 8, 11)  # in silence
    assert not made.wait(1.0)
    made.close()


def test_processes_that_cannot_start_are_done_without(monkeypatch, capfd):
    monkeypatch.setattr(workers, "PROGRAM", "raise SystemExit('no')")
    made = Decoders(2)
    assert not made.wait()
    with pytest.warns(UserWarning, match="2 of the 2 processes .* 0 are left"):
        assert made([png(pixels())], **HOW)[0].shape == (3, 8, 11)
    made.close()


def test_a_cache_and_a_stream_filled_by_processes_are_those_of_threads(used, tmp_path):
    for i in range(12):
        write(tmp_path / "set" / f"{i:02d}.png", pixels(10, 12 + i, seed=i))
    (tmp_path / "set" / "05.jpg").write_bytes(encoded_half())
    source = open_source(tmp_path / "set")
    settings = {"store_size": 8, "channels": 3}
    kept = load(source, cache_dir=tmp_path / "a", **settings)
    assert len(used) == 13
    other = load(source, cache_dir=tmp_path / "b", workers=1, **settings)
    assert len(used) == 13 and kept.flat.equal(other.flat) and kept.skipped == other.skipped
    assert [name for name, _ in kept.skipped] == ["05.jpg"]
    batches = [
        Loader(Streamed(source, workers=workers, **settings), batch_size=4, seed=0).batches(0)
        for workers in (None, 1)
    ]
    for _ in range(4):
        ours, theirs = (next(one) for one in batches)
        assert ours.index.equal(theirs.index)
        assert ours.images.padded().equal(theirs.images.padded())
    assert len(used) > 13


def test_few_cores_few_images_and_pixels_make_do_with_threads(monkeypatch, two, tmp_path):
    monkeypatch.setattr(workers, "shared", lambda cores: two)
    write(tmp_path / "set" / "a.png", pixels())
    files, drawn = open_source(tmp_path / "set"), open_source("shapes")
    for source, count, cores, expected in (
        (files, 2048, 4, two),
        (files, 2047, 16, None),
        (files, 9999, 3, None),
        (drawn, 9999, 16, None),
    ):
        assert workers.decoders_for(source, count, cores) is expected


def test_processes_on_a_machine_share_its_cores(monkeypatch):
    monkeypatch.setattr(decode_threads, "num_workers", lambda: 16)
    for processes, expected in ((1, 16), (8, 2), (32, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        assert decode_threads.own_workers() == expected


def encoded_half():
    whole = encoded(Image.fromarray(pixels(40, 40)), "JPEG")
    return whole[: len(whole) // 2]
