"""Full disks, folders that are not writable, and runs that were killed while they wrote."""

import atexit
import contextlib
import os
import resource
import signal
import warnings

import numpy as np
import pytest
import torch

from selfsight.data import dataset_index as indexes
from selfsight.data import load_images, open_source, pixel_cache
from selfsight.data.cache_eviction import evict, free_disk
from selfsight.data.cache_files import create_part_file, list_abandoned, remove_abandoned
from selfsight.data.dataset_index import IndexWriter, load_or_write_index
from selfsight.data.pixel_cache import CacheWriter
from selfsight.errors import UserError
from tests.data.image_files import pixels, write
from tests.data.sources.test_tar import same, three


def fork(work):
    """Do this in a copy of this process, which is ended by it; return how it ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads of this process are not used there
        child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextlib.contextmanager
def full(after):
    """As a full disk: no file may have more bytes than this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("passing")))
    monkeypatch.setattr("tempfile.tempdir", None)  # read TMPDIR anew
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "selfsight"


def test_a_full_disk_raises_and_leaves_no_files(tmp_path, own_cache):
    for i in range(40):
        write(tmp_path / f"set/{i}.png", pixels(30, 30, seed=i))
    with full(70_000), pytest.raises(UserError, match=r"failed after .* File too large"):
        load_images(open_source(tmp_path / "set"), store_size=30, budget_bytes=0)
    assert not list(own_cache.iterdir())


def test_pixels_that_were_slow_to_decode_are_left_for_later_runs(tmp_path, own_cache, monkeypatch):
    for i in range(3):
        write(tmp_path / f"set/{i}.png", pixels(30, 20 + i, seed=i))
    source = open_source(tmp_path / "set")
    fast = load_images(source, store_size=30)
    assert not list(own_cache.glob("*"))  # decoding these takes no time
    monkeypatch.setattr(pixel_cache, "SLOW_DECODING", 0.0)
    with full(1_000):  # the disk: they are in memory all the same
        assert torch.equal(load_images(source, store_size=30).flat, fast.flat)
    assert not list(own_cache.glob("*"))
    load_images(source, store_size=30)
    assert len(list(own_cache.glob("*"))) == 2  # the pixels and their index
    monkeypatch.setattr(pixel_cache, "decode_images", None)  # later runs do not decode
    later = load_images(source, store_size=30)
    assert torch.equal(later.flat, fast.flat) and torch.equal(later.heights, fast.heights)


def test_an_index_of_pixels_that_does_not_fit_raises_and_leaves_no_files(tmp_path):
    with CacheWriter(tmp_path, "key", 0) as store:
        for i in range(3000):
            store.add(i, np.zeros((1, 1, 1), np.uint8))
        with full(9000), pytest.raises(UserError, match="File too large"):
            store.finish()
    assert not list(tmp_path.iterdir())


def test_a_cache_folder_that_is_not_writable_raises(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        CacheWriter(tmp_path / "file" / "selfsight", "key", 0) as store,
        pytest.raises(UserError, match="XDG_CACHE_HOME"),
    ):
        store.add(0, np.zeros((3, 8, 8), np.uint8))


def test_unfinished_files_of_a_killed_run_count_as_free_and_are_removed(tmp_path, monkeypatch):
    def be_killed():
        with IndexWriter(tmp_path, "index") as index, CacheWriter(tmp_path, "key", 0) as store:
            index.add({"label": [0]})
            store.add(0, np.zeros((3, 80, 80), np.uint8))
            os.kill(os.getpid(), signal.SIGKILL)

    assert fork(be_killed) == -signal.SIGKILL
    assert sorted(path.name[:3] for path in tmp_path.glob("*.part")) == ["ind", "key"]
    disk = os.statvfs_result((1, 1, 0, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr("os.statvfs", lambda folder: disk)
    assert free_disk(tmp_path) >= 3 * 80 * 80
    evict(tmp_path, 1)
    assert not list(tmp_path.iterdir())


def test_files_that_are_being_written_are_not_removed(tmp_path):
    with create_part_file(tmp_path, "a") as file, IndexWriter(tmp_path, "b") as index:
        assert list(list_abandoned(tmp_path)) == []
        remove_abandoned(tmp_path)
        assert os.path.exists(file.name) and index.folder.exists()
    assert [str(path) for path in list_abandoned(tmp_path)] == [file.name]


@pytest.mark.parametrize("place", ["/dev/null/x", "/proc/x"])
def test_shards_are_read_without_a_writable_cache_folder(place, tmp_path, own_cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    removed = []
    monkeypatch.setattr(indexes.atexit, "register", lambda do, path, **_: removed.append(path))
    three(tmp_path)
    for _ in range(2):
        source = open_source(tmp_path, labels=True)
        assert same(source) and "XDG_CACHE_HOME" in source.notes[0]
    assert len(removed) == 1 and removed[0].parent == indexes.temporary_folder()


def test_a_temporary_index_is_removed_at_exit(tmp_path, own_cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    three(tmp_path)

    def open_and_exit():
        atexit._clear()  # what the tests do at their exit
        open_source(tmp_path)
        there = len(list(indexes.temporary_folder().iterdir()))
        atexit._run_exitfuncs()
        os._exit(10 + there)

    assert fork(open_and_exit) == 11
    assert list(indexes.temporary_folder().iterdir()) == []


def test_other_processes_find_a_temporary_index(tmp_path, own_cache, monkeypatch):
    (tmp_path / "file").write_text("")
    load_or_write_index(
        tmp_path / "file", "k", lambda to: (to.add({"label": [4]}), to.finish({}))[1]
    )
    monkeypatch.setattr(indexes.dist, "local_rank", lambda: 1)
    assert indexes.load_index(tmp_path / "file", "k").columns["label"].tolist() == [4]


def test_an_index_that_fits_nowhere_raises(tmp_path, own_cache):
    three(tmp_path)
    with full(8), pytest.raises(UserError, match="XDG_CACHE_HOME"):
        open_source(tmp_path)
    assert not list(own_cache.iterdir()) and not list(indexes.temporary_folder().iterdir())


def test_an_image_that_a_limit_left_out_is_read_once_the_limit_is_raised(
    tmp_path, own_cache, monkeypatch
):
    monkeypatch.setattr(pixel_cache, "SLOW_DECODING", 0.0)  # the pixels are kept
    write(tmp_path / "photos" / "small.png", pixels(8, 8))
    write(tmp_path / "photos" / "large.png", pixels(1100, 1000))
    monkeypatch.setenv("SELFSIGHT_MAX_MEGAPIXELS", "1")
    skipped = load_images(open_source(tmp_path / "photos")).skipped
    assert [name for name, _ in skipped] == ["large.png"]
    monkeypatch.setenv("SELFSIGHT_MAX_MEGAPIXELS", "2")
    assert load_images(open_source(tmp_path / "photos")).skipped == []


def test_a_file_that_another_run_evicts_meanwhile_is_not_an_error(tmp_path, monkeypatch):
    (tmp_path / "a.pixels").write_bytes(bytes(10))
    found = [tmp_path / "a.pixels", tmp_path / "gone.pixels"]
    monkeypatch.setattr(type(tmp_path), "glob", lambda *_: iter(found))
    assert free_disk(tmp_path) > 0
    evict(tmp_path, 1)


def test_the_pixels_that_another_machine_has_written_stay(tmp_path):
    for value in (1, 2):
        with CacheWriter(tmp_path, "key", 0) as writer:
            writer.add(0, np.full((3, 8, 8), value, np.uint8))
            assert writer.finish().flat[0] == 1
    assert not list(tmp_path.glob("*.part"))
