"""JPEG files are decoded without Pillow where that gives the same pixels."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from selfsight.data.decoders import decode_image, jpeg
from selfsight.data.decoders.decode_image import UnreadableError, decode
from selfsight.data.decoders.jpeg import decode_rgb_jpeg, read_jpeg_header
from tests.data.image_files import encoded, pixels

SIZES = {(37, 53): 32, (160, 121): 64, (64, 48): 64}  # width and height: short side that is kept


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_pixels_equal_pillows(monkeypatch, size, subsampling, progressive):
    image = Image.fromarray(pixels()).resize(size, Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6
    how = {"quality": 80, "subsampling": subsampling, "progressive": progressive}
    data = encoded(image, "JPEG", **how, exif=exif)
    with Image.open(io.BytesIO(data)) as opened:
        expected = np.asarray(ImageOps.exif_transpose(opened))
    np.testing.assert_array_equal(decode(data, store_size=1000), expected)
    small = decode(data, store_size=SIZES[size])
    monkeypatch.setattr(decode_image, "decode_with_libjpeg", lambda *_: None)
    np.testing.assert_array_equal(small, decode(data, store_size=SIZES[size]))


DESCRIBED = b'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="%d"/>'


def entry(kind, value, count=1, order="big", tag=0x0112):
    """A block of EXIF with one number in it."""
    start = {"big": b"MM\0*", "little": b"II*\0"}[order]
    head = [(8, 4), (1, 2), (tag, 2), (kind, 2), (count, 4)]
    size = {1: 1, 3: 2, 4: 4}[kind]
    info = start + b"".join(n.to_bytes(width, order) for n, width in head)
    return b"Exif\0\0" + info + value.to_bytes(size, order).ljust(4, b"\0") + bytes(4)


ODD = {
    "xmp": {"xmp": DESCRIBED % 6},
    "xmp in an element": {"xmp": b"<tiff:Orientation>8</tiff:Orientation>"},
    "exif before xmp": {"xmp": DESCRIBED % 6, "exif": entry(3, 3)},
    "upright exif before xmp": {"xmp": DESCRIBED % 6, "exif": entry(3, 1)},
    "xmp beside other exif": {"xmp": DESCRIBED % 5, "exif": entry(3, 6, tag=0x0103)},
    "long, big endian": {"exif": entry(4, 6)},
    "long, little endian": {"exif": entry(4, 6, order="little")},
    "short, little endian": {"exif": entry(3, 8, order="little")},
    "byte": {"exif": entry(1, 6)},
    "two numbers": {"exif": entry(3, 6, count=2)},
    "no such number": {"exif": entry(3, 77), "xmp": DESCRIBED % 6},
    "cut": {"exif": entry(3, 6)[:20], "xmp": DESCRIBED % 6},
    "no block": {"exif": b"Exif\0\0nonsense", "xmp": DESCRIBED % 6},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # of EXIF that is cut
@pytest.mark.parametrize("odd", ODD)
def test_orientation_equals_pillows_at_any_size(odd):
    image = Image.fromarray(pixels(8, 8)).resize((60, 40), Image.Resampling.BICUBIC)
    data = encoded(image, "JPEG", **ODD[odd])
    with Image.open(io.BytesIO(data)) as opened:
        expected = np.asarray(_turned(opened))
    info = read_jpeg_header(data)  # nvJPEG rotates by this, unless it is None
    lies = expected.shape[:2] == (60, 40)
    assert info is None or (info.orientation in range(5, 9)) == lies
    np.testing.assert_array_equal(decode(data, store_size=40), expected)
    small = decode(data, store_size=8)  # Pillow decodes it at a fraction
    assert (small.shape[0] > small.shape[1]) == (expected.shape[0] > expected.shape[1])


def _turned(image):
    """By Pillow, where it does not stumble."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image.copy()


def test_exif_after_the_frame_is_respected():
    data = encoded(Image.fromarray(pixels()), "JPEG")
    exif = entry(3, 6)
    block = b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif
    at = data.index(b"\xff\xda")
    assert decode(data[:at] + block + data[at:], store_size=64).shape == (16, 12, 3)


def test_pillow_reads_gray_large_and_broken_files(monkeypatch):
    calls = []
    monkeypatch.setattr(jpeg, "decode_rgb_jpeg", lambda data: calls.append(data))
    image = Image.fromarray(pixels()).resize((64, 48))
    gray, large = encoded(image.convert("L"), "JPEG"), encoded(image, "JPEG")
    assert decode(gray, store_size=64).shape == (48, 64, 3)
    assert decode(large, store_size=12).shape == (12, 16, 3)  # decoded at half its size
    assert not calls
    assert decode(large, store_size=13).shape == (13, 17, 3)  # libjpeg gives up
    assert calls == [large]


def test_a_file_that_neither_can_read_has_a_reason():
    data = encoded(Image.fromarray(pixels()), "JPEG")
    info = read_jpeg_header(data)
    assert info is not None and (info.width, info.height, info.components) == (16, 12, 3)
    broken = data[:2] + b"\xff\xc0\x00\x11\x08\x00\x0c\x00\x10\x03" + bytes(30) + b"\xff\xd9"
    assert read_jpeg_header(broken) is not None and decode_rgb_jpeg(broken) is None
    with pytest.raises(UnreadableError):
        decode(broken, store_size=8)
