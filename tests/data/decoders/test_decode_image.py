import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from selfsight.data.decoders import pillow_formats
from selfsight.data.decoders.decode_image import decode, read_header
from selfsight.data.decoders.resize_to_store import MAX_ASPECT
from selfsight.data.image_limits import UnreadableError
from tests.data.image_files import encoded, pixels, png


def test_a_small_png_is_decoded_exactly():
    x = pixels()
    np.testing.assert_array_equal(decode(png(x), store_size=64), x)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_equals_pillows_own(orientation, kind):
    image = Image.fromarray(pixels())
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(image, kind, exif=exif)
    with Image.open(io.BytesIO(data)) as opened:
        expected = np.asarray(ImageOps.exif_transpose(opened))
    np.testing.assert_array_equal(decode(data, store_size=64), expected)
    info = read_header(data)
    assert (info.height, info.width) == expected.shape[:2]


def test_sixteen_bits_are_scaled_by_their_depth():
    deep = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    out = decode(encoded(Image.fromarray(deep), "PNG"), store_size=64, channels=1)
    np.testing.assert_array_equal(out[..., 0], [[0, 1, 128, 255]])


def test_transparent_pixels_become_white():
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    out = decode(encoded(image, "PNG", transparency=0), store_size=64)
    np.testing.assert_array_equal(out, [[[255, 255, 255], [0, 0, 255]]])


def test_four_channels_keep_transparency():
    x = np.dstack([pixels(), np.full((12, 16), 77, np.uint8)])
    np.testing.assert_array_equal(decode(png(x), store_size=64, channels=4), x)


def test_gray_is_repeated_and_color_is_weighted():
    gray = pixels()[..., 0]
    np.testing.assert_array_equal(
        decode(png(gray), store_size=64), np.repeat(gray[..., None], 3, axis=2)
    )
    expected = np.asarray(Image.fromarray(pixels()).convert("L"))
    out = decode(png(pixels()), store_size=64, channels=1)
    np.testing.assert_array_equal(out[..., 0], expected)


def test_a_cmyk_jpeg_is_decoded_with_its_colors():
    red = Image.new("RGB", (16, 16), (250, 20, 20))
    out = decode(encoded(red.convert("CMYK"), "JPEG", quality=95), store_size=64)
    assert np.abs(out.astype(int) - (250, 20, 20)).max() <= 6


def test_the_short_side_is_reduced_and_never_enlarged():
    assert decode(png(pixels(40, 60)), store_size=20).shape == (20, 30, 3)
    assert decode(png(pixels(12, 16)), store_size=20).shape == (12, 16, 3)


def test_the_long_side_of_a_panorama_is_limited():
    assert decode(png(pixels(20, 400)), store_size=20).shape[1] == MAX_ASPECT * 20


def test_resizing_is_antialiased():
    lines = np.zeros((64, 64, 3), np.uint8)
    lines[:, ::2] = 255
    out = decode(png(lines), store_size=16).astype(int)
    assert np.abs(out[:, 2:-2] - 127.5).max() < 8


def test_a_large_jpeg_is_close_to_one_decoded_in_full():
    smooth = Image.fromarray(pixels(8, 8)).resize((512, 384), Image.Resampling.BICUBIC)
    data = encoded(smooth, "JPEG", quality=95)
    out = decode(data, store_size=48)
    full = np.asarray(smooth.resize((64, 48), Image.Resampling.BICUBIC))
    assert out.shape == (48, 64, 3)
    assert np.abs(out.astype(int) - full).mean() < 2


def test_decoded_pixels_are_resized_like_a_file():
    x = pixels(40, 60)
    np.testing.assert_array_equal(decode(x, store_size=20), decode(png(x), store_size=20))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"these are no pixels", "not an image"),
        (encoded(Image.fromarray(pixels(64, 64)), "JPEG")[:600], "(?i)truncated"),
    ],
)
def test_a_broken_file_raises_with_the_reason(data, why):
    with pytest.raises(UnreadableError, match=why):
        decode(data, store_size=64)


def test_a_heic_file_names_the_missing_package(monkeypatch):
    monkeypatch.setattr(pillow_formats, "heic_readable", lambda: False)
    with pytest.raises(UnreadableError, match=r"selfsight\[heic\]"):
        decode(b"\0\0\0\x18ftypheic" + bytes(32), store_size=64)
