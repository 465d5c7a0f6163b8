"""JPEG files are read past Pillow where that gives the same pixels."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from sightline.data import decode as module
from sightline.data.decode import UnreadableError, decode
from sightline.data.jpeg import jpeg, pixels_of
from tests.data.made import encoded, pixels

SIZES = {(37, 53): 32, (160, 121): 64, (64, 48): 64}  # width and height: short side that is kept


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_the_pixels_are_pillows(monkeypatch, size, subsampling, progressive):
    image = Image.fromarray(pixels()).resize(size, Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6
    how = {"quality": 80, "subsampling": subsampling, "progressive": progressive}
    data = encoded(image, "JPEG", **how, exif=exif)
    with Image.open(io.BytesIO(data)) as opened:
        expected = np.asarray(ImageOps.exif_transpose(opened))
    np.testing.assert_array_equal(decode(data, store_size=1000), expected)
    small = decode(data, store_size=SIZES[size])
    monkeypatch.setattr(module, "_plain", lambda *_: None)
    np.testing.assert_array_equal(small, decode(data, store_size=SIZES[size]))


def test_pillow_reads_grey_large_and_broken_ones(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "pixels_of", lambda data: asked.append(data))
    image = Image.fromarray(pixels()).resize((64, 48))
    grey, large = encoded(image.convert("L"), "JPEG"), encoded(image, "JPEG")
    assert decode(grey, store_size=64).shape == (48, 64, 3)
    assert decode(large, store_size=12).shape == (12, 16, 3)  # decoded at half its size
    assert not asked
    assert decode(large, store_size=13).shape == (13, 17, 3)  # libjpeg gives up
    assert asked == [large]


def test_what_neither_reads_has_a_reason():
    data = encoded(Image.fromarray(pixels()), "JPEG")
    told = jpeg(data)
    assert told is not None and (told.width, told.height, told.components) == (16, 12, 3)
    broken = data[:2] + b"\xff\xc0\x00\x11\x08\x00\x0c\x00\x10\x03" + bytes(30) + b"\xff\xd9"
    assert jpeg(broken) is not None and pixels_of(broken) is None
    with pytest.raises(UnreadableError):
        decode(broken, store_size=8)
