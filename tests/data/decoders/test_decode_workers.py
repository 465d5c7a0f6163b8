"""Processes give what `decode` gives, and their end is no harm."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from selfsight.data import cgroup_limits, load_images, open_source
from selfsight.data.decoders import decode_workers
from selfsight.data.decoders.decode_image import decode
from selfsight.data.decoders.decode_workers import DecodeProcesses
from selfsight.data.loader import Loader
from selfsight.data.stream import StreamedImages
from tests.data.image_files import encoded, pixels, png, write

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="memory is shared so on Linux alone; threads decode"
)
SETTINGS = {"store_size": 8, "channels": 3}


@pytest.fixture(scope="module")
def two():
    """Two processes, with little shared memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_workers, "SHARED_BYTES", decode_workers.SLOTS * 4096)
        made = DecodeProcesses(2)
    assert made.wait()
    yield made
    made.close()
    assert made.parent.returncode == 0


@pytest.fixture
def requests_to_processes(monkeypatch, two):
    """Use processes on few cores and for few images too; list what they are asked to decode."""
    monkeypatch.setattr(decode_workers, "MIN_IMAGES", 1)
    monkeypatch.setattr(decode_workers, "MIN_CORES", 1)
    requests, decode_in_processes = [], two.decode

    def record(some, **settings):
        requests.extend(some)
        return decode_in_processes(some, **settings)

    monkeypatch.setattr(decode_workers, "DecodeProcesses", lambda cores: two)
    monkeypatch.setattr(two, "decode", record)
    monkeypatch.setattr(two, "close", lambda: None)  # other tests use them too
    return requests


def test_paths_bytes_and_pixels_are_decoded_as_by_decode(two, tmp_path):
    file = write(tmp_path / "a.png", pixels(12, 16))
    other = png(pixels(20, 10, seed=1))
    found = two.decode(
        [str(file), other, pixels(9, 9, seed=2), str(tmp_path / "none"), b"no"], **SETTINGS
    )
    for ours, handed in zip(found, (file.read_bytes(), other, pixels(9, 9, seed=2)), strict=False):
        np.testing.assert_array_equal(ours.transpose(1, 2, 0), decode(handed, **SETTINGS))
    assert found[3] == "there is no such file" and "not an image" in found[4]
    assert two.decode([], **SETTINGS) == []


def test_samples_of_any_type_are_returned_as_they_are(two, tmp_path):
    images = [np.arange(5 * 7 * k, dtype=np.float32).reshape(5, 7, k) / 3 for k in (2, 2)]
    for i, x in enumerate(images):
        np.save(tmp_path / f"{i}.npy", x)
    paths = [str(tmp_path / f"{i}.npy") for i in range(2)]
    found = two.decode(paths, channels=2, dtype="float32")
    for x, y in zip(images, found, strict=True):
        np.testing.assert_array_equal(y, x.transpose(2, 0, 1))


def test_later_requests_do_not_change_earlier_results(two):
    first = two.decode([png(pixels(seed=1))], **SETTINGS)[0]
    before = first.copy()
    for seed in range(2, 6):
        two.decode([png(pixels(seed=seed))], **SETTINGS)
    np.testing.assert_array_equal(first, before)


def test_more_results_than_slots_can_be_held(two):
    files = [png(pixels(seed=seed)) for seed in range(4 * decode_workers.SLOTS)]
    held = [two.decode([file], **SETTINGS)[0] for file in files]
    for ours, file in zip(held, files, strict=True):
        np.testing.assert_array_equal(ours.transpose(1, 2, 0), decode(file, **SETTINGS))
    del ours, held
    both = [two.idle.get_nowait() for _ in range(2)]
    assert [worker.free_slots.qsize() for worker in both] == [decode_workers.SLOTS - 1] * 2
    for worker in both:
        two.idle.put(worker)


def test_more_pixels_than_the_shared_memory_are_returned(two):
    files = [png(pixels(30, 30, seed=i)) for i in range(3)]
    for ours, file in zip(two.decode(files, store_size=30, channels=3), files, strict=True):
        expected = decode(file, store_size=30)
        np.testing.assert_array_equal(ours.transpose(1, 2, 0), expected)


def test_processes_that_cannot_start_are_replaced_by_threads(monkeypatch, capfd):
    monkeypatch.setattr(decode_workers, "PROGRAM", "raise SystemExit('no')")
    made = DecodeProcesses(2)
    assert not made.wait()
    with pytest.warns(UserWarning, match="2 of the 2 processes .* 0 are left"):
        assert made.decode([png(pixels())], **SETTINGS)[0].shape == (3, 8, 11)
    made.close()


def test_processes_and_threads_give_the_same_cache_and_stream(requests_to_processes, tmp_path):
    for i in range(12):
        write(tmp_path / "set" / f"{i:02d}.png", pixels(10, 12 + i, seed=i))
    (tmp_path / "set" / "05.jpg").write_bytes(encoded_half())
    source = open_source(tmp_path / "set")
    settings = {"store_size": 8, "channels": 3}
    kept = load_images(source, **settings)
    assert len(requests_to_processes) == 13
    other = load_images(source, workers=1, **settings)
    assert (
        len(requests_to_processes) == 13
        and kept.flat.equal(other.flat)
        and kept.skipped == other.skipped
    )
    assert [name for name, _ in kept.skipped] == ["05.jpg"]
    batches = [
        Loader(StreamedImages(source, workers=workers, **settings), batch_size=4, seed=0).batches(0)
        for workers in (None, 1)
    ]
    for _ in range(4):
        ours, theirs = (next(one) for one in batches)
        assert ours.index.equal(theirs.index)
        assert ours.images.padded().equal(theirs.images.padded())
    assert len(requests_to_processes) > 13


def test_few_cores_few_images_and_decoded_pixels_use_threads(monkeypatch, two, tmp_path):
    monkeypatch.setattr(decode_workers, "DecodeProcesses", lambda cores: two)
    write(tmp_path / "set" / "a.png", pixels())
    files, drawn = open_source(tmp_path / "set"), open_source("digits")
    for source, count, cores, expected in (
        (files, 2048, 4, two),
        (files, 2047, 16, None),
        (files, 9999, 3, None),
        (drawn, 9999, 16, None),
    ):
        assert decode_workers.start_processes(source, count, cores) is expected


def test_processes_on_a_machine_share_its_cores(monkeypatch):
    monkeypatch.setattr(cgroup_limits, "available_cpus", lambda: 16)
    for processes, expected in ((1, 16), (8, 2), (32, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        assert cgroup_limits.cpus_per_process() == expected


def encoded_half():
    whole = encoded(Image.fromarray(pixels(40, 40)), "JPEG")
    return whole[: len(whole) // 2]


def test_threads_replace_processes_that_die(two):
    """The last test: starting others takes seconds."""
    pid = two.parent.pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    with pytest.warns(UserWarning, match="1 of the 2 processes .* 1 are left"):
        assert two.decode([png(pixels())], **SETTINGS)[0].shape == (3, 8, 11)
    for _ in range(2):  # in silence
        assert two.decode([png(pixels())], **SETTINGS)[0].shape == (3, 8, 11)
    assert not two.idle.qsize() and not two.wait(1.0)
