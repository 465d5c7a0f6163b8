"""Damaged pixel caches and tar indexes are noticed, named and built again."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from selfsight.data import cache_files, load_images, open_source
from tests.data.image_files import pixels, write
from tests.data.sources.test_tar import same, three

DAMAGE = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "one byte less": lambda data: data[:-1],
    "one byte more": lambda data: data + b"\0",
    "first byte": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "a bit in the middle": lambda data: flip(data, len(data) // 2),
    "last byte": lambda data: flip(data, len(data) - 1),
    "zeros": lambda data: bytes(len(data)),
    "a block of zeros": lambda data: data[: len(data) // 3] + bytes(9) + data[len(data) // 3 + 9 :],
    "text": lambda data: b"hello",
    "a later version": lambda data: data.replace(b"content", b"contenu") + b" ",
}


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]


def put_folder(path):
    path.unlink()
    path.mkdir()


def put_link(path):
    path.unlink()
    path.symlink_to(path.name)


REPLACED = {
    "folder": put_folder,
    "link": put_link,
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "owner": None,
    "unreadable": None,
}


def damage(path, how, monkeypatch):
    if how in DAMAGE:
        path.write_bytes(DAMAGE[how](path.read_bytes()))
    elif how == "owner":
        monkeypatch.setattr(cache_files.os, "getuid", lambda: 12345)
        os.chown(path, 54321, -1)
    elif how == "unreadable":
        refuse_once(path, monkeypatch)
    else:
        REPLACED[how](path)


def refuse_once(path, monkeypatch):
    """As a file without permission to read it: the tests may run as root."""
    check, left = cache_files.check_owner, [path]

    def deny(other):
        if other in left:
            left.remove(other)
            raise PermissionError(13, "Permission denied")
        check(other)

    for module in ("pixel_cache", "dataset_index"):
        monkeypatch.setattr(f"selfsight.data.{module}.check_owner", deny)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "selfsight"


@pytest.mark.parametrize("suffix", ["pixels", "sizes"])
@pytest.mark.parametrize("how", [*DAMAGE, *REPLACED])
def test_damaged_pixels_are_noticed_and_decoded_again(tmp_path, cache, monkeypatch, suffix, how):
    for i in range(3):
        write(tmp_path / f"set/{i}.png", pixels(6, 6, seed=i))

    def load():
        return load_images(open_source(tmp_path / "set"), store_size=6, budget_bytes=0)

    before = load()
    flat = before.flat.clone()  # a file that is cut while it is mapped ends the process
    assert not load().notes
    (path,) = cache.glob(f"*.{suffix}")
    damage(path, how, monkeypatch)
    again = load()
    assert torch.equal(again.flat, flat) and torch.equal(again.heights, before.heights)
    assert "are damaged" in again.notes[0] and str(path.with_suffix(".pixels")) in again.notes[0]
    if how != "owner":  # root's own files are owned by root
        after = load()
        assert not after.notes and torch.equal(after.flat, flat)


@pytest.mark.parametrize("name", ["about.json", "offset.bin", "label.bin"])
@pytest.mark.parametrize("how", [*DAMAGE, *REPLACED])
def test_a_damaged_index_is_noticed_and_built_again(tmp_path, cache, monkeypatch, name, how):
    if (name, how) in (("about.json", "owner"), ("about.json", "unreadable")):
        return  # the folder's owner is what counts; an unreadable file is as one that is missing
    three(tmp_path, count=1)
    assert not open_source(tmp_path, labels=True).notes
    (index,) = cache.glob("*.index")
    if how in DAMAGE and DAMAGE[how](data := (index / name).read_bytes()) == data:
        return
    damage(index / name, how, monkeypatch)
    again = open_source(tmp_path, labels=True)
    assert same(again, count=3)
    assert str(index) in again.notes[0] and "It was built again" in again.notes[0]
    if how != "owner":
        assert not open_source(tmp_path, labels=True).notes


@pytest.mark.parametrize("how", ["file", "empty folder", "missing column"])
def test_an_index_that_is_something_else_is_built_again(tmp_path, cache, how):
    three(tmp_path)
    open_source(tmp_path)
    (index,) = cache.glob("*.index")
    if how == "missing column":
        (index / "name_end.bin").unlink()
    else:
        shutil.rmtree(index)
        index.touch() if how == "file" else index.mkdir()
    again = open_source(tmp_path, labels=True)
    assert same(again) and "It was built again" in again.notes[0]


def test_every_byte_of_a_file_counts_in_its_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_files, "BLOCK", 7)
    path = tmp_path / "x"
    data = np.random.default_rng(0).bytes(20)
    path.write_bytes(data)
    changed = [flip(data, i) for i in range(20)] + [data[:i] for i in range(20)]
    hashes = {cache_files.hash_file(path)}
    for other in [*changed, data[7:14] + data[:7] + data[14:]]:
        path.write_bytes(other)
        hashes.add(cache_files.hash_file(path))
    assert len(hashes) == 42


CUT = """
import mmap, os, sys, threading
from selfsight.stop_signals import explain_bus_errors
explain_bus_errors()
path, reader = sys.argv[1:]
with open(path, "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
os.truncate(path, 9000)
thread = threading.Thread(target=mapped.find, args=[b"x"])
thread.run() if reader == "main" else thread.start()
while thread.is_alive():
    sum(range(1000))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the file is found in /proc/self/maps")
@pytest.mark.parametrize("reader", ["main", "thread"])
def test_a_file_cut_while_it_is_mapped_is_named(tmp_path, reader):
    file = tmp_path / "some pixels"
    file.write_bytes(bytes(100_000))
    words = [sys.executable, "-c", CUT, file, reader]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1  # and not -7, SIGBUS
    assert f"selfsight: {file} was cut short while it was read" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
