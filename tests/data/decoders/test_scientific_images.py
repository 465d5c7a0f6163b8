"""Images that are not 8-bit photographs, against numpy's own arrays."""

import io
import pickle
import struct
import zlib
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pytest
import torch
from PIL import Image

from selfsight.data import load_images, open_source
from selfsight.data.decoders.decode_image import decode, read_header, try_decode
from selfsight.data.decoders.scientific_images import SampleFormat, read_format
from selfsight.data.eval_transform import EvalTransform
from selfsight.data.image_limits import UnreadableError
from selfsight.data.pixel_statistics import choose_kind, find_kind
from selfsight.views import View, apply_views_reference
from tests.data.image_files import encoded, pixels


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def deep_png(x: np.ndarray) -> bytes:
    """A PNG of 16 bits per channel, without filters, as the standard describes it."""

    def chunk(name: bytes, body: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(name + body))
        return struct.pack(">I", len(body)) + name + body + checksum

    height, width, channels = x.shape
    color_type = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    head = struct.pack(">IIBBBBB", width, height, 16, color_type, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in x)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def tiff(
    pages: list[np.ndarray],
    *,
    planar: bool = False,
    deflate: bool = False,
    change: Mapping[int, list[int]] = MappingProxyType({}),
) -> bytes:
    """A little-endian TIFF of [H, W, C] pages with one strip for each plane; `change` its tags."""
    out, link = bytearray(b"II*\0\0\0\0\0"), 4
    for x in pages:
        height, width, channels = x.shape
        planes = list(np.moveaxis(x, 2, 0)) if planar else [x]
        strips = [np.ascontiguousarray(p).tobytes() for p in planes]
        strips = [zlib.compress(s) for s in strips] if deflate else strips
        offsets = []
        for strip in strips:
            offsets.append(len(out))
            out += strip
        kind = {"u": 1, "i": 2, "f": 3}[x.dtype.kind]
        tags = {256: [width], 257: [height], 258: [8 * x.itemsize] * channels}
        tags |= {259: [8 if deflate else 1], 262: [1], 273: offsets, 277: [channels]}
        tags |= {278: [height], 279: [len(s) for s in strips], 284: [2 if planar else 1]}
        tags |= {339: [kind] * channels, **change}
        places = {}
        for tag, values in tags.items():
            places[tag] = len(out)
            out += struct.pack(f"<{len(values)}I", *values)
        out[link : link + 4] = struct.pack("<I", len(out))
        out += struct.pack("<H", len(tags))
        for tag, values in tags.items():
            one = values[0] if len(values) == 1 else places[tag]
            out += struct.pack("<HHII", tag, 4, len(values), one)
        link = len(out)
        out += b"\0\0\0\0"
    return bytes(out)


def values(dtype: str, channels: int) -> np.ndarray:
    generator = np.random.default_rng(channels)
    if dtype == "float32":
        return generator.normal(0, 1e4, (7, 9, channels)).astype(np.float32)
    return generator.integers(0, np.iinfo(dtype).max, (7, 9, channels)).astype(dtype)


@pytest.mark.parametrize(("dtype", "channels"), [("uint16", 2), ("float32", 6), ("uint8", 16)])
def test_arrays_are_read_with_channels_last_or_first(dtype, channels):
    x = values(dtype, channels)
    for stored in (x, np.moveaxis(x, 2, 0), np.asfortranarray(x)):
        out = decode(npy(stored), store_size=64, channels=channels, dtype=dtype)
        np.testing.assert_array_equal(out, x)
        assert out.dtype == dtype


@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bit_png_keeps_all_its_bits(channels):
    x = values("uint16", channels)
    out = decode(deep_png(x), store_size=64, channels=channels, dtype="uint16")
    np.testing.assert_array_equal(out, x)
    header = read_header(deep_png(x))
    assert header.samples == SampleFormat(9, 7, channels, "uint16", is_color=channels == 3)


def test_transparent_pixels_of_sixteen_bits_become_white():
    x = values("uint16", 4)
    x[..., 3] = 0
    out = decode(deep_png(x), store_size=64, channels=3, dtype="uint16")
    assert (out == 65535).all()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32", "float64"])
@pytest.mark.parametrize("planar", [False, True])
def test_tiff_samples_are_those_that_were_written(dtype, planar):
    x = values("float32", 6).astype(dtype) if "u" not in dtype else values(dtype, 6)
    stored = dtype if dtype.startswith("u") else "float32"
    file = tiff([x], planar=planar, deflate=planar)
    out = decode(file, store_size=64, channels=6, dtype=stored)
    np.testing.assert_array_equal(out, x.astype(stored))


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "packbits", "tiff_adobe_deflate"])
def test_tiff_that_pillow_wrote_equals_what_pillow_reads(compression):
    x = values("uint16", 1)
    file = encoded(Image.fromarray(x[..., 0]), "TIFF", compression=compression)
    out = decode(file, store_size=64, channels=1, dtype="uint16")
    np.testing.assert_array_equal(out[..., 0], np.asarray(Image.open(io.BytesIO(file))))


def test_bits_that_are_reversed_are_turned_around():
    x = values("uint16", 2)
    turned = np.packbits(np.unpackbits(x.view(np.uint8)).reshape(-1, 8)[:, ::-1]).view(np.uint16)
    file = tiff([turned.reshape(x.shape)], change={266: [2]})
    np.testing.assert_array_equal(decode(file, store_size=64, channels=2, dtype="uint16"), x)


@pytest.mark.parametrize("channels", [3, 4])
def test_eight_bit_channels_that_are_no_colors_are_all_read(channels):
    x = values("uint8", channels)
    for planar in (False, True):  # of planes that are compressed, Pillow reads the first alone
        file = tiff([x], planar=planar, deflate=planar)
        np.testing.assert_array_equal(decode(file, store_size=64, channels=channels), x)
        assert (read_header(file).mode, read_header(file).samples) == ("RGBA"[:channels], None)


def test_deep_pages_are_channels_and_other_pages_are_not():
    pages = [values("uint16", 1), values("uint16", 1) // 2]
    out = decode(tiff(pages), store_size=64, channels=2, dtype="uint16")
    np.testing.assert_array_equal(out, np.concatenate(pages, axis=2))
    eight = [values("uint8", 1)] * 2
    assert read_format(tiff(eight)) is None  # a photograph: its first page
    np.testing.assert_array_equal(decode(tiff(eight), store_size=64, channels=1), eight[0])


def test_a_resized_image_equals_torchs_antialiased_bicubic():
    x = np.random.default_rng(0).integers(900, 1100, (40, 60, 2)).astype(np.uint16)
    out = decode(npy(x), store_size=16, channels=2, dtype="uint16")
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(x.astype(np.float64)).permute(2, 0, 1)[None],
        size=(16, 24),
        mode="bicubic",
        antialias=True,
    )
    assert np.abs(out - expected[0].permute(1, 2, 0).numpy()).max() < 0.51


def test_pickled_objects_are_never_read():
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "|O", "fortran_order": False, "shape": (4, 4)}
    )
    file.write(pickle.dumps([1] * 16))
    with pytest.raises(UnreadableError, match="pickled Python objects, which are never read"):
        read_header(file.getvalue())
    with pytest.raises(UnreadableError, match="pickled Python objects, which are never read"):
        decode(file.getvalue(), store_size=64, channels=6, dtype="float32")


def tags_over_tags(count: int) -> bytes:
    """A TIFF of a few thousand bytes, each of whose tags is all of them: count squared values."""
    tags = struct.pack("<HHII", 273, 1, 12 * count, 8) * count
    return b"II*\0\x08\0\0\0" + struct.pack("<H", count) + tags + b"\0\0\0\0"


def bad(x: np.ndarray, value: float) -> np.ndarray:
    x = x.copy()
    x[2, 3, 1] = value
    return x


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (npy(bad(values("float32", 6), np.nan)), "1 of its 378 values are NaN or infinite"),
        (npy(bad(values("float32", 6), np.inf)), "1 of its 378 values are NaN or infinite"),
        (npy(values("float32", 5)), "it has 5 channels, not 6"),
        (npy(values("uint16", 6)), "its values are uint16, and float32 is expected"),
        (npy(values("float32", 6))[:-9], "it is truncated"),
        (npy(np.zeros((2, 3, 4, 5))), r"its shape is \[2, 3, 4, 5\]"),
        (npy(np.zeros((20, 30, 40))), r"its shape is \[20, 30, 40\]"),
        (npy(np.array([["a"]])), "its values are <U1"),
        (deep_png(values("uint16", 1)), "its values are uint16"),
        (encoded(Image.fromarray(pixels()), "JPEG"), "its values are uint8"),
        (tiff([values("float32", 6)])[:-200], "damaged TIFF"),
        (b"\x93NUMPY\x03\x00", "version 3.0"),
        (npy(values("float32", 6)).replace(b"}", b" "), "not a .npy file of an image"),
        (
            npy(values("float32", 1)[..., 0]).replace(b"(7, 9)", b"(-1,9)"),
            r"its shape is \[-1, 9\]",
        ),
        (tiff([values("float32", 6)], change={322: [2**31], 323: [2**31], 324: [8]}), "pixels"),
        (tiff([values("float32", 6)], change={339: [6] * 6}), "not an image"),
        (deep_png(values("uint16", 1)).replace(b"\x10\0\0\0\0", b"\x10\7\0\0\0"), "damaged PNG"),
        (tags_over_tags(2000), "its tags are too long"),
    ],
)
def test_an_odd_file_has_one_reason(data, reason):
    found = try_decode(lambda: data, channels=6, dtype="float32")
    assert isinstance(found, str)
    with pytest.raises(UnreadableError, match=reason):
        raise UnreadableError(found)


def test_a_palette_of_sixteen_bits_is_damage():
    data = bytearray(deep_png(values("uint16", 1)))
    data[25] = 3
    head = bytes(data[12:29])
    data[29:33] = struct.pack(">I", zlib.crc32(head))
    with pytest.raises(UnreadableError, match="has no palette"):
        decode(bytes(data), store_size=64, channels=3, dtype="uint16")


@pytest.mark.parametrize(("photos", "deep", "expected"), [(3, 1, None), (1, 3, (1, "uint16"))])
def test_a_mixed_folder_follows_most_of_its_images_and_says_so(photos, deep, expected):
    formats = [None] * photos + [SampleFormat(9, 9, 1, "uint16", is_color=False)] * deep
    kind, note = choose_kind(formats)
    assert kind == expected
    assert "into a folder of their own" in note


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(0)
    for i in range(20):
        scale, shift = np.array([1.0, 1e3, 1e-3]), np.array([0.0, -5e3, 1.0])
        x = generator.normal(size=(12, 8 + i % 3, 3)) * scale + shift
        np.save(tmp_path / f"{i}.npy", x.astype(np.float32))
    return tmp_path


def test_statistics_are_those_of_numpy(folder):
    kind = find_kind(open_source(folder))
    x = np.concatenate([np.load(f).reshape(-1, 3) for f in folder.glob("*.npy")])
    assert (kind.channels, kind.dtype, kind.is_color) == (3, "float32", False)
    low, high = x.min(axis=0), x.max(axis=0)
    np.testing.assert_allclose(kind.low, low)
    np.testing.assert_allclose(kind.high, high)
    scaled = (x - low) / (high - low)
    np.testing.assert_allclose(kind.mean, scaled.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(kind.std, scaled.std(axis=0), rtol=1e-4)


def test_a_dead_pixel_does_not_stretch_the_range(tmp_path):
    for i in range(20):
        x = np.random.default_rng(i).integers(1000, 2000, (30, 30)).astype(np.uint16)
        x[0, 0] = 65535 if i == 7 else x[0, 0]
        np.save(tmp_path / f"{i}.npy", x)
    kind = find_kind(open_source(tmp_path))
    assert kind.low[0] >= 1000
    assert kind.high[0] < 2001


def test_images_with_a_bright_top_have_an_up(tmp_path):
    generator = np.random.default_rng(0)
    for tilt in (0.0, 0.5):
        ramp = np.linspace(tilt, -tilt, 16)[:, None]
        for i in range(40):
            np.save(tmp_path / f"{i}.npy", (generator.normal(size=(16, 16)) + ramp))
        assert find_kind(open_source(tmp_path)).has_up == (tilt > 0)


def test_stored_pixels_are_those_of_the_files(folder, tmp_path):
    source = open_source(folder)
    stored = load_images(source, store_size=64, channels=3, dtype="float32", progress=False)
    assert stored.flat.dtype == torch.float32
    raw, _ = stored.pack(torch.tensor([3, 0, 5]), lambda n: torch.empty(n, dtype=torch.uint8))
    for x, size, i in zip(raw.padded(), raw.sizes.tolist(), (3, 0, 5), strict=True):
        expected = np.load(folder / source.names[i]).transpose(2, 0, 1)
        np.testing.assert_array_equal(x[:, : size[0], : size[1]], expected)


def test_pixels_on_disk_are_those_in_memory(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = {"store_size": 8, "channels": 3, "dtype": "float32", "progress": False}
    memory = load_images(open_source(folder), **settings)
    for _ in range(2):  # written, then loaded
        disk = load_images(open_source(folder), **settings, budget_bytes=0)
        assert torch.equal(disk.flat, memory.flat)


def test_views_of_scaled_bytes_are_views_of_the_bytes():
    x = torch.randint(0, 256, (4, 3, 20, 24), dtype=torch.uint8)
    sizes, index = torch.tensor([[20, 24]] * 4), torch.arange(4)
    view = View(size=16, gray=0.5, blur=0.5, rotate=0.5)
    low, high = (100.0, -3.0, 0.0), (100.0 + 255 * 4, -3.0 + 255 / 8, 255.0 * 64)
    gain = torch.tensor([(b - a) / 255 for a, b in zip(low, high, strict=True)])
    deep = x.float() * gain[:, None, None] + torch.tensor(low)[:, None, None]
    scaled = View(size=16, gray=0.5, blur=0.5, rotate=0.5, low=low, high=high)
    settings = {"seed": 0, "epoch": 1}
    (expected,) = apply_views_reference([view], x, sizes, index, **settings)
    (found,) = apply_views_reference([scaled], deep, sizes, index, **settings)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_the_transform_of_a_deep_image_is_numpys():
    x = values("uint16", 6)
    low, high = tuple(map(float, range(6))), tuple(60000.0 + i for i in range(6))
    transform = EvalTransform(
        size=7, resize=7, channels=6, dtype="uint16", low=low, high=high, mean=(0.4,), std=(0.2,)
    )
    expected = (x[:, 1:8].astype(np.float64) - low) / (np.array(high) - low)
    expected = (expected.transpose(2, 0, 1) - 0.4) / 0.2
    np.testing.assert_allclose(transform(x), expected, atol=1e-5)
