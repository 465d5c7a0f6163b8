"""Damaged image files, files that are no images, and damaged caches."""

import contextlib
import functools
import io
import os
import random
import socket
import struct
import tarfile
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from selfsight.cli.main import main
from selfsight.data import Loader, load_images, open_source
from selfsight.data.decoders.decode_image import read_header, try_decode
from selfsight.data.image_limits import UnreadableError
from selfsight.data.stream import StreamedImages
from tests.data.decoders.test_scientific_images import deep_png, npy, tiff, values
from tests.data.image_files import encoded, png, write
from tests.fuzz.cases import SEED, assert_none_failed, pick_cases, run_case
from tests.fuzz.test_data_shards import add_member, damage, flip

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

PER_PROCESS = 13  # image files
SMOOTH = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 7, 3), np.uint8)).resize(
    (70, 60), Image.Resampling.BICUBIC
)
ODD = [
    *(
        "pipe",
        "socket",
        "device",
        "zero",
        "random",
        "loop",
        "dangling",
        "folder",
        "sparse",
        "empty",
    ),
    *("bomb png", "bomb bmp", "bomb ppm", "bomb gif", "bomb tiff", "bomb webp", "bomb jpeg"),
    *("eps", "postscript", "pdf", "svg", "elf", "zip", "html", "scans", "text", "13000", "empty"),
]
SUFFIXES = ["jpg", "png", "tif", "webp"]


class Case(NamedTuple):
    what: str
    number: int

    @property
    def random(self) -> random.Random:
        return random.Random(f"{SEED} {self.what} {self.number}")


@functools.cache
def whole_files() -> list[bytes]:
    """Small files in all formats and modes."""
    exif = Image.Exif()
    exif[0x0112] = 6
    files = [
        encoded(SMOOTH, "PNG"),
        encoded(SMOOTH, "PNG", exif=exif),
        encoded(SMOOTH.convert("P"), "PNG", transparency=0),
        encoded(SMOOTH.convert("LA"), "PNG"),
        encoded(Image.fromarray(np.arange(4200, dtype=np.uint16).reshape(60, 70)), "PNG"),
        encoded(SMOOTH, "JPEG"),
        encoded(SMOOTH, "JPEG", progressive=True, exif=exif),
        encoded(SMOOTH.convert("CMYK"), "JPEG"),
        encoded(SMOOTH.convert("L"), "JPEG"),
        encoded(SMOOTH, "WEBP"),
        encoded(SMOOTH, "WEBP", lossless=True),
        encoded(SMOOTH, "GIF", save_all=True, append_images=[SMOOTH.rotate(90)]),
        encoded(SMOOTH, "BMP"),
        encoded(SMOOTH, "TIFF", compression="tiff_lzw"),
        encoded(SMOOTH, "TIFF", compression="tiff_adobe_deflate"),
        encoded(SMOOTH.convert("F"), "TIFF"),
        encoded(SMOOTH, "PPM"),
        encoded(SMOOTH, "TGA", compression="tga_rle"),
        encoded(SMOOTH, "JPEG2000"),
    ]
    with contextlib.suppress(KeyError, OSError):  # Pillow may be built without it
        files.append(encoded(SMOOTH, "AVIF"))
    return files


@functools.cache
def deep_files() -> list[tuple[bytes, int, str]]:
    """Small files of more bits or channels, with their channels and type."""
    files = [(deep_png(values("uint16", n)), n, "uint16") for n in (1, 3)]
    for dtype, channels in (("uint8", 6), ("uint16", 2), ("float32", 1), ("float32", 6)):
        x = values(dtype, channels)
        several = [x[..., k : k + 1] for k in range(channels)]
        for data in (npy(x), tiff([x]), tiff([x], planar=True, deflate=True), tiff(several)):
            files.append((data, channels, dtype))
    lzw = Image.fromarray(values("uint16", 1)[..., 0])
    return [*files, (encoded(lzw, "TIFF", compression="tiff_lzw"), 1, "uint16")]


def decode_damaged(cases: list[Case]) -> None:
    for case in cases:
        whole = [(data, 3, "uint8") for data in whole_files()]
        data, channels, dtype = case.random.choice([*whole, *deep_files()])
        data = damage(data, case.random)
        with contextlib.suppress(UnreadableError):
            read_header(data)
        for store_size in (32, None):
            pixels = try_decode(
                lambda data=data: data, channels=channels, dtype=dtype, store_size=store_size
            )
            assert isinstance(pixels, str) or pixels.dtype == dtype


def test_no_damaged_image_is_a_crash(record_property):
    every = [Case("image", i) for i in range(1300)]
    groups = [every[i : i + PER_PROCESS] for i in range(0, len(every), PER_PROCESS)]
    whole_files()
    decode_damaged(every[:1])

    def check(group: list[Case]) -> str | None:
        outcome = run_case(decode_damaged, group, seconds=60, gigabytes=2)
        return outcome.failure and f"{outcome.failure}: {outcome.output[-1200:]}"

    name = f"damaged images, {PER_PROCESS} per case"
    assert_none_failed(name, pick_cases(groups, few=4, full=100), check, record_property)


def odd_content(what: str, r: random.Random) -> bytes:
    large = r.choice([20_000, 65_000])
    match what:
        case "bomb png" | "13000":
            side = 13_000 if what == "13000" else r.choice([large, 2**31 - 1])
            return png_of(side, bytes(1 << 16) if side > 13_000 else bytes((3 * side + 1) * 2000))
        case "bomb bmp":
            whole = bytearray(encoded(SMOOTH, "BMP"))
            whole[18:26] = struct.pack("<ii", large, large)
            return bytes(whole)
        case "bomb ppm":
            return b"P6 %d %d 255\n" % (large, large) + bytes(1000)
        case "bomb gif":
            whole = bytearray(encoded(SMOOTH, "GIF"))
            whole[6:10] = struct.pack("<HH", large, large)
            return bytes(whole)
        case "bomb tiff":
            return encoded(SMOOTH, "TIFF").replace(
                struct.pack("<HHII", 256, 4, 1, 70), struct.pack("<HHII", 256, 4, 1, large * large)
            )
        case "bomb webp":
            return b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\x10\0\0\0" + b"\xff\x3f\0" * 2 + bytes(50)
        case "bomb jpeg":
            whole = encoded(SMOOTH, "JPEG")
            at = whole.index(b"\xff\xc0")
            return whole[: at + 5] + struct.pack(">HH", large, large) + whole[at + 9 :]
        case "scans":
            whole = encoded(SMOOTH.resize((2000, 2000)), "JPEG", progressive=True)
            last = whole.rfind(b"\xff\xda")
            return whole[:last] + whole[last:-2] * 300 + whole[-2:]
        case "eps":
            return encoded(SMOOTH, "EPS")
    return {
        "postscript": b"%!PS-Adobe-3.0\n%%BoundingBox: 0 0 9 9\n{} loop\n",
        "pdf": b"%PDF-1.4\n",
        "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "elf": b"\x7fELF" + bytes(100),
        "zip": b"PK\x03\x04" + bytes(100),
        "html": b"<html><script>1</script>",
        "text": b"hello",
        "empty": b"",
    }[what]


def png_of(side: int, rows: bytes) -> bytes:
    """A PNG that claims so many pixels a side, with zeros."""

    def chunk(name: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + check

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def make_odd(what: str, path: Path, r: random.Random) -> None:
    match what:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as opened:
                opened.bind(str(path))
        case "device":
            path.symlink_to("/dev/null")
        case "zero" | "random":
            path.symlink_to(f"/dev/{'zero' if what == 'zero' else 'urandom'}")
        case "loop":
            path.symlink_to(path.name)
        case "dangling":
            path.symlink_to("nowhere")
        case "folder":
            path.mkdir()
        case "sparse":
            with path.open("wb") as file:
                file.write(r.choice([b"", *whole_files()]))
                file.truncate(8 << 30)
        case _:
            path.write_bytes(odd_content(what, r))


def use_folder(folder: Path) -> None:
    with contextlib.suppress(SystemExit):
        main(["doctor", str(folder)])
    source = open_source(folder)
    images = load_images(source, store_size=32, progress=False)
    assert len(images) >= 4 and len(images) + len(images.skipped) == len(source)
    streamed = StreamedImages(source, store_size=32, channels=3, workers=2)
    assert len(next(iter(Loader(streamed, batch_size=2, seed=0).batches(0))).index) == 2


def pool_in_threads() -> None:
    together = threading.Barrier(4)

    def pool(_: int) -> torch.Tensor:
        together.wait()
        return F.adaptive_avg_pool2d(torch.ones(2, 64, 8, 8), 4)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(pool, range(4)))


def test_the_threads_of_a_case_can_use_torch_at_once():
    torch.set_num_threads(torch.get_num_threads())  # from here on every thread sets its number
    for _ in range(5):
        assert run_case(pool_in_threads).failure is None


def test_no_odd_file_is_a_hang_or_takes_all_memory(tmp_path, monkeypatch, record_property):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.set_num_threads(1)
    for i in range(4):
        write(tmp_path / f"good/{i}.png", np.full((8, 8, 3), 60 * i, np.uint8))
    use_folder(tmp_path / "good")  # import here what every case would import
    whole_files()
    cases = [Case(what, i) for what in ODD for i in range(len(SUFFIXES))]

    def check(case: Case) -> str | None:
        folder = tmp_path / f"{case.what}-{case.number}"
        for i in range(4):
            write(folder / f"{i}.png", np.full((8, 8, 3), 60 * i, np.uint8))
        make_odd(case.what, folder / f"odd.{SUFFIXES[case.number]}", case.random)
        outcome = run_case(use_folder, folder, seconds=60, gigabytes=2)
        return outcome.failure and f"{outcome.failure}: {outcome.output[-1200:]}"

    picked = pick_cases(cases, few=12, full=100)
    assert_none_failed("odd files", picked, check, record_property)


def use_cache(folder: Path, number: int) -> None:
    """Write a cache, damage a random part of it, and load it again."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    r = Case("cache", number).random
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for i in range(6):
            add_member(tar, f"{i}.png", png(np.full((8, 8, 3), 40 * i, np.uint8)))
            add_member(tar, f"{i}.cls", str(i % 3).encode())
    (folder / "x.tar").write_bytes(out.getvalue())

    def load() -> tuple[bytes, list[int], list[str], str]:
        source = open_source(folder / "x.tar", labels=True)
        images = load_images(source, store_size=8, budget_bytes=0, progress=False)
        content = images.flat.numpy().tobytes()
        return content, source.labels.tolist(), list(images.names), " ".join(images.notes)

    expected = load()
    assert not expected[3]
    files = sorted(p for p in (folder / "cache" / "selfsight").rglob("*") if p.is_file())
    damaged = r.choice(files)
    before = damaged.read_bytes()
    damaged.unlink()
    damaged.write_bytes(after := r.choice([flip, damage])(before, r))
    found = load()
    assert found[:3] == expected[:3], "silently wrong"
    # A name that is missing or a cut that changes nothing is no damage.
    assert "damaged" in found[3] or before == after, f"{damaged} was not noticed"


def test_no_damaged_cache_is_silent(tmp_path, record_property):
    torch.set_num_threads(1)

    def check(case: Case) -> str | None:
        folder = tmp_path / str(case.number)
        folder.mkdir()
        outcome = run_case(use_cache, folder, case.number, seconds=60, gigabytes=2)
        return outcome.failure and f"{outcome.failure}: {outcome.output[-1200:]}"

    picked = pick_cases([Case("cache", i) for i in range(200)], few=12, full=200)
    assert_none_failed("damaged pixel cache or tar index", picked, check, record_property)
