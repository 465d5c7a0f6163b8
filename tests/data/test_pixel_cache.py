"""Disks that are full or take nothing, and runs that were killed while they wrote."""

import contextlib
import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest

from selfsight.data import dataset_index as indexes
from selfsight.data import load, open_source, pixel_cache
from selfsight.data.dataset_index import IndexWriter, made_index
from selfsight.data.pixel_cache import Store, make_room
from selfsight.data.temporary_files import abandoned, new_part, remove_abandoned
from selfsight.errors import UserError
from tests.data.made import pixels, write
from tests.data.sources.test_tar import same, three

KILLED = """
import os, signal, sys
import numpy as np
from pathlib import Path
from selfsight.data.pixel_cache import Store
from selfsight.data.dataset_index import IndexWriter
with IndexWriter(Path(sys.argv[1]), "index") as index, Store(Path(sys.argv[1]), "key", 0) as store:
    index.add({"label": [0]})
    store.add(0, np.zeros((3, 80, 80), np.uint8))
    os.kill(os.getpid(), signal.SIGKILL)
"""


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


def test_a_disk_that_fills_up_is_told_and_left_empty(tmp_path):
    for i in range(40):
        write(tmp_path / f"set/{i}.png", pixels(30, 30, seed=i))
    folder = tmp_path / "cache"
    with full(70_000), pytest.raises(UserError, match=r"failed after .* File too large"):
        load(open_source(tmp_path / "set"), store_size=30, cache_dir=folder, budget_bytes=0)
    assert not list(folder.iterdir())


def test_an_index_of_pixels_that_does_not_fit_is_told_and_left_empty(tmp_path):
    with Store(tmp_path, "key", 0) as store:
        for i in range(3000):
            store.add(i, np.zeros((1, 1, 1), np.uint8))
        with full(9000), pytest.raises(UserError, match="File too large"):
            store.finish()
    assert not list(tmp_path.iterdir())


def test_a_cache_folder_that_takes_nothing_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        Store(tmp_path / "file" / "selfsight", "key", 0) as store,
        pytest.raises(UserError, match="XDG_CACHE_HOME"),
    ):
        store.add(0, np.zeros((3, 8, 8), np.uint8))


def test_what_a_killed_run_left_is_counted_as_free_and_removed(tmp_path, monkeypatch):
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)])
    assert ended.returncode == -signal.SIGKILL
    assert sorted(path.name[:3] for path in tmp_path.glob("*.part")) == ["ind", "key"]
    disk = os.statvfs_result((1, 1, 0, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr("os.statvfs", lambda folder: disk)
    assert pixel_cache.free_disk(tmp_path) >= 3 * 80 * 80
    make_room(tmp_path, 1)
    assert not list(tmp_path.iterdir())


def test_what_is_being_written_stays(tmp_path):
    with new_part(tmp_path, "a") as file, IndexWriter(tmp_path, "b") as index:
        assert list(abandoned(tmp_path)) == []
        remove_abandoned(tmp_path)
        assert os.path.exists(file.name) and index.folder.exists()
    assert [str(path) for path in abandoned(tmp_path)] == [file.name]


@pytest.mark.parametrize("place", ["/dev/null/x", "/proc/x"])
def test_shards_are_read_without_a_cache_folder(place, tmp_path, own_cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    removed = []
    monkeypatch.setattr(indexes.atexit, "register", lambda do, path, **_: removed.append(path))
    three(tmp_path)
    for _ in range(2):
        source = open_source(tmp_path, labels=True)
        assert same(source) and "XDG_CACHE_HOME" in source.notes[0]
    assert len(removed) == 1 and removed[0].parent == indexes.temporary()


def test_an_index_for_one_run_is_gone_after_it(tmp_path, own_cache):
    program = "import sys; from selfsight.data import open_source; open_source(sys.argv[1])"
    environment = os.environ | {"XDG_CACHE_HOME": "/dev/null"}
    command = [sys.executable, "-c", program, str(three(tmp_path))]
    subprocess.run(command, env=environment, check=True)
    assert list(indexes.temporary().iterdir()) == []


def test_other_processes_find_an_index_that_could_not_be_kept(tmp_path, own_cache, monkeypatch):
    (tmp_path / "file").write_text("")
    made_index(tmp_path / "file", "k", lambda to: (to.add({"label": [4]}), to.finish({}))[1])
    monkeypatch.setattr(indexes.dist, "local_rank", lambda: 1)
    assert indexes.open_index(tmp_path / "file", "k").columns["label"].tolist() == [4]


def test_an_index_that_fits_nowhere_is_told(tmp_path, own_cache):
    three(tmp_path)
    with full(8), pytest.raises(UserError, match="XDG_CACHE_HOME"):
        open_source(tmp_path)
    assert not list(own_cache.iterdir()) and not list(indexes.temporary().iterdir())
