"""Servers fail, and remote files change."""

import time

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from selfsight.data import load_images, open_source
from selfsight.data.sources import remote_files
from selfsight.data.sources.remote_files import File, fingerprint_files
from tests.data.image_files import parquet, pixels, png, read_padded
from tests.data.sources.test_tar import same, shard


class ServerDisconnectedError(Exception):
    """As aiohttp's: no OSError."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(remote_files, "PAUSES", (0.0, 0.0, 0.0))


@pytest.fixture
def there():
    """A bucket in memory."""
    yield fsspec.filesystem("memory")
    MemoryFileSystem.store.clear()


@pytest.fixture
def failing(monkeypatch):
    """Lets each kind of question fail so many times in a row."""

    def start(times, error):
        for name in ("cat_file", "info", "find", "open"):
            original, left = getattr(MemoryFileSystem, name), [times]

            def ask(self, *given, original=original, left=left, **named):
                if left[0]:
                    left[0] -= 1
                    raise error
                return original(self, *given, **named)

            monkeypatch.setattr(MemoryFileSystem, name, ask)

    return start


def test_failed_requests_are_repeated(there, failing, tmp_path):
    there.pipe("/b/x.tar", shard(0, 3))
    file = parquet(tmp_path / "x.parquet", [pixels(seed=i) for i in range(3)])
    there.pipe("/p/x.parquet", file.read_bytes())
    failing(3, ServerDisconnectedError("Server disconnected"))
    for word in ("memory://b", "memory://b/x.tar", "memory://p"):
        assert same(open_source(word), 3)


def test_an_image_that_cannot_be_fetched_is_skipped_with_the_reason(there, failing):
    for i in range(3):
        there.pipe(f"/photos/{i}.png", png(pixels(seed=i)))
    source = open_source("memory://photos")
    failing(4, ServerDisconnectedError("Server disconnected"))
    images = load_images(source, store_size=64, workers=1)
    assert images.skipped == [("/photos/0.png", "the server failed 4 times: Server disconnected")]


@pytest.mark.parametrize("error", [FileNotFoundError("x"), PermissionError("x")])
def test_a_missing_or_forbidden_file_is_not_requested_again(there, failing, error):
    there.pipe("/photos/0.png", b"x")
    failing(1, error)
    with pytest.raises(type(error)):
        File("/photos/0.png", there).read()


def test_a_rejected_request_is_not_repeated(there, failing):
    there.pipe("/photos/0.png", b"x")
    for status, expected in ((403, "failed 1 times: no"), (503, "failed 4 times: no")):
        error = ServerDisconnectedError("no")
        error.status = status
        failing(4, error)
        with pytest.raises(OSError, match=expected):
            File("/photos/0.png", there).read()


def test_reading_continues_where_it_failed(there, monkeypatch):
    there.pipe("/x", bytes(range(100)))
    with File("/x", there).open() as file:
        assert file.read(10) == bytes(range(10))
        original, left = file.file.read, [2]

        def fail(size):
            left[0] -= 1
            data = original(size)  # it has moved on when the line breaks
            if left[0] >= 0:
                raise ServerDisconnectedError
            return data

        file.file.read = fail
        assert file.read(10) == bytes(range(10, 20)) and file.tell() == 20
        assert (file.seek(-5, 2), file.read()) == (95, bytes(range(95, 100)))
        assert (file.seek(3), file.seek(4, 1), file.read(1)) == (3, 7, b"\7")


@pytest.mark.parametrize("word", ["memory://photos", "memory://photos/*.png"])
def test_changed_remote_images_are_decoded_anew(there, word, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = {"store_size": 64, "budget_bytes": 0}
    for seed in (1, 2):
        there.pipe("/photos/0.png", png(pixels(seed=seed)))
        found = read_padded(load_images(open_source(word), **settings), torch.tensor([0]))[0]
        assert (found[0].permute(1, 2, 0).numpy() == pixels(seed=seed)).all()
    assert len(list(tmp_path.glob("selfsight/*.pixels"))) == 2
    load_images(open_source(word), **settings)
    assert len(list(tmp_path.glob("selfsight/*.pixels"))) == 2


def test_file_information_is_requested_concurrently(there, monkeypatch):
    for i in range(16):
        there.pipe(f"/b/{i}", bytes(i))
    shards = [File(f"/b/{i}", there) for i in range(16)]
    expected = fingerprint_files(shards)
    original = MemoryFileSystem.info
    monkeypatch.setattr(
        MemoryFileSystem, "info", lambda self, path: time.sleep(0.1) or original(self, path)
    )
    began = time.monotonic()
    assert fingerprint_files(shards) == expected
    assert time.monotonic() - began < 1.0  # one after the other it would be 1.6
    there.pipe("/b/7", bytes(99))
    assert fingerprint_files(shards) != expected
