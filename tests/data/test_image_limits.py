"""Files that are no images, or that would take all memory or time."""

import os
import shutil
import socket
import struct
import subprocess
import zlib

import numpy as np
import pytest
from PIL import Image

from selfsight.data import data_summary, load_images, open_source
from selfsight.data.decoders.decode_image import decode, read_header
from selfsight.data.image_limits import UnreadableError
from selfsight.data.sources import remote_files
from selfsight.data.sources.remote_files import read_file
from selfsight.errors import UserError
from tests.data.image_files import encoded, pixels, png, write


def png_header(width, height):
    """A PNG of zeros that claims a size: its pixels would be read row by row."""

    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def make_odd_file(kind, path):
    if kind == "named pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(str(path))
    elif kind == "device":
        os.symlink("/dev/zero", path)
    elif kind == "loop":
        os.symlink(path.name, path)
    elif kind == "dangling":
        os.symlink("nowhere", path)
    else:
        with path.open("wb") as file:
            file.truncate(8 << 30)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("named pipe", "it is a named pipe, not a regular file"),
        ("socket", "it is a socket, not a regular file"),
        ("device", "it is a device, not a regular file"),
        ("loop", "Too many levels of symbolic links"),
        ("dangling", "there is no such file"),
        ("sparse", "8,192 MiB, more than the limit of 256 MiB; SELFSIGHT_MAX_IMAGE_MIB raises it"),
    ],
)
def test_odd_files_are_skipped_with_the_reason(tmp_path, kind, reason):
    write(tmp_path / "good.png", pixels())
    make_odd_file(kind, tmp_path / "odd.jpg")
    source = open_source(tmp_path)
    images = load_images(source, store_size=16)
    assert len(images) == 1 and [name for name, _ in images.skipped] == ["odd.jpg"]
    assert reason in images.skipped[0][1]
    assert reason in data_summary.inspect_data(tmp_path).unreadable[0][1]


@pytest.mark.parametrize("name", ["x.tar", "x.parquet"])
@pytest.mark.parametrize("kind", ["named pipe", "device", "loop"])
def test_odd_shards_are_named(tmp_path, name, kind):
    make_odd_file(kind, tmp_path / name)
    with pytest.raises(UserError, match=str(tmp_path / name)):
        open_source(tmp_path)


def test_more_pixels_than_the_limit_are_not_decoded(monkeypatch):
    for data in (png_header(13_000, 13_000), png_header(2**31 - 1, 2**31 - 1)):
        with pytest.raises(UnreadableError, match="pixels"):
            decode(data, store_size=64)
        with pytest.raises(UnreadableError, match="pixels"):
            read_header(data)
    jpeg = encoded(Image.fromarray(pixels(40, 60)), "JPEG")
    monkeypatch.setenv("SELFSIGHT_MAX_MEGAPIXELS", "0.002")
    with pytest.raises(UnreadableError, match=r"60 x 40 .* SELFSIGHT_MAX_MEGAPIXELS raises it"):
        decode(jpeg, store_size=64)


def test_both_limits_can_be_raised(monkeypatch, tmp_path):
    data = png(pixels(30, 40))
    path = tmp_path / "x.png"
    path.write_bytes(data)
    monkeypatch.setenv("SELFSIGHT_MAX_IMAGE_MIB", str((len(data) - 1) / 2**20))
    for read in (lambda: read_file(str(path)), lambda: decode(data, store_size=64)):
        with pytest.raises(UnreadableError, match="SELFSIGHT_MAX_IMAGE_MIB"):
            read()
    monkeypatch.setenv("SELFSIGHT_MAX_IMAGE_MIB", str((len(data) + 1) / 2**20))
    np.testing.assert_array_equal(decode(read_file(str(path)), store_size=64), pixels(30, 40))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 89_478_485)  # Pillow's own
    monkeypatch.setenv("SELFSIGHT_MAX_MEGAPIXELS", "400")
    assert read_header(png_header(19_000, 20_000)).width == 19_000


def test_a_jpeg_of_thousands_of_scans_is_not_decoded(monkeypatch):
    monkeypatch.setenv("SELFSIGHT_MAX_MEGAPIXELS", "0.2")
    image = Image.fromarray(pixels(400, 400))
    data = encoded(image, "JPEG", progressive=True)
    last = data.rfind(b"\xff\xda")
    assert decode(data, store_size=512).shape == (400, 400, 3)
    bomb = data[:last] + data[last:-2] * 100 + data[-2:]
    with pytest.raises(UnreadableError, match=r"JPEG of 1\d\d scans"):
        decode(bomb, store_size=64)


@pytest.mark.parametrize("compression", [None, "tga_rle"])
def test_tga_is_told_from_damaged_files(compression):
    image = Image.fromarray(pixels())
    data = encoded(image, "TGA", compression=compression)
    np.testing.assert_array_equal(decode(data, store_size=64), pixels())
    first_version = data[:-26]
    if compression is None:
        np.testing.assert_array_equal(decode(first_version, store_size=64), pixels())
    with pytest.raises(UnreadableError, match="not an image"):
        decode(first_version + b"more", store_size=64)


def test_no_postscript_is_run(tmp_path, monkeypatch):
    path = tmp_path / "x.jpg"
    Image.fromarray(pixels()).save(path, "EPS")
    monkeypatch.setattr(subprocess, "check_call", lambda *_, **__: pytest.fail("started"))
    with pytest.raises(UnreadableError, match="not an image"):
        decode(path.read_bytes(), store_size=64)


def test_folders_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    write(tmp_path / "a/1.png", pixels())
    write(tmp_path / "b/2.png", pixels())
    scan = os.scandir

    def deny(path):
        if str(path).endswith("b"):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", deny)
    source = open_source(tmp_path)
    assert list(source.names) == ["a/1.png"]
    assert "1 sub-folder could not be read" in source.notes[0]
    assert "b (Permission denied)" in source.notes[0]
    assert "b (Permission denied)" in "".join(
        data_summary.describe(data_summary.inspect_data(tmp_path))
    )


@pytest.mark.slow
def test_folders_nested_deeper_than_python_recurses_are_read(tmp_path):
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        for _ in range(1100):
            os.mkdir("d")
            os.chdir("d")
        shutil.copy(write(tmp_path / "above.png", pixels()), "x.png")
    finally:
        os.chdir(here)
    assert list(open_source(tmp_path).names) == ["above.png", "d/" * 1100 + "x.png"]
    subprocess.run(["rm", "-r", tmp_path / "d"], check=True)  # pytest's own clean-up is recursive


@pytest.mark.parametrize("spec", ["x{0..999999999}.tar", "x{0..99}{0..99}.parquet"])
def test_a_pattern_of_too_many_names_is_refused(tmp_path, monkeypatch, spec):
    monkeypatch.setattr(remote_files, "MAX_EXPANDED", 5000)
    with pytest.raises(UserError, match="more than 5,000 files"):
        open_source(tmp_path / spec)


def test_the_missing_shard_of_a_range_is_named(tmp_path):
    (tmp_path / "x0.tar").write_bytes(bytes(1024))
    with pytest.raises(UserError, match=r"There is no file .*x1\.tar"):
        open_source(tmp_path / "x{0..99}.tar")


def test_a_list_that_is_no_text_is_refused_without_reading_all_of_it(tmp_path):
    with (tmp_path / "list.txt").open("wb") as file:
        file.truncate(8 << 30)
    with pytest.raises(UserError, match=r"a line of more than 65,536 characters"):
        open_source(tmp_path / "list.txt")
