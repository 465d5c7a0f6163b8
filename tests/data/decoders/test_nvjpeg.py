"""The GPU's decoder with its kernels replaced by torchvision's own on the CPU: same calls."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from selfsight.data.decoders.decode_image import decode
from selfsight.data.decoders.jpeg import read_jpeg_header
from selfsight.data.decoders.nvjpeg import decode_with_nvjpeg
from tests.data.image_files import encoded, pixels, png


def smooth(height=60, width=80, seed=0):
    small = Image.fromarray(pixels(6, 8, seed=seed))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def file(image, orientation=1, **settings):
    exif = Image.Exif()
    exif[0x010F] = "maker"
    exif[0x0112] = orientation
    return encoded(image, "JPEG", quality=95, exif=exif, **settings)


def both(files, **settings):
    settings = {"store_size": 40, "channels": 3} | settings
    ours = decode_with_nvjpeg(files, device="cpu", **settings)
    return ours, [decode(one, **settings).transpose(2, 0, 1) for one in files]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_found_without_decoding_and_respected(orientation):
    data = file(smooth(), orientation)
    info = read_jpeg_header(data)
    assert (info.width, info.height, info.components, info.orientation) == (80, 60, 3, orientation)
    (ours,), (expected,) = both([data])
    assert ours.shape == expected.shape
    assert np.abs(ours.numpy().astype(int) - expected).mean() < 1


@pytest.mark.parametrize("settings", [{"progressive": True}, {"subsampling": 0}])
def test_progressive_and_unsubsampled_jpegs_are_decoded(settings):
    data = file(smooth(), **settings)
    (ours,), (expected,) = both([data], store_size=100)
    np.testing.assert_array_equal(ours.numpy(), expected)


def test_big_endian_exif_is_read_as_pillow_reads_it():
    body = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    data = encoded(smooth(), "JPEG")
    data = data[:2] + b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body + data[2:]
    with Image.open(io.BytesIO(data)) as image:
        assert image.getexif()[0x0112] == read_jpeg_header(data).orientation == 6


def test_a_batch_of_all_formats_keeps_its_order():
    gray = encoded(smooth(seed=1).convert("L"), "JPEG", quality=95)
    cmyk = encoded(smooth(seed=2).convert("CMYK"), "JPEG", quality=95)
    files = [
        file(smooth(seed=0)),
        png(pixels(seed=3)),
        gray,
        cmyk,
        file(smooth(40, 90)),
        pixels(5, 5),
    ]
    ours, expected = both(files)
    for a, b in zip(ours, expected, strict=True):
        assert a.shape == b.shape and np.abs(a.numpy().astype(int) - b).mean() < 1


def test_broken_files_give_a_reason_and_do_not_affect_others():
    whole = file(smooth())
    damaged = whole[:300] + bytes(len(whole) - 302) + b"\xff\xd9"
    files = [whole, whole[: len(whole) // 2], b"", b"\xff\xd8\xff\xd9", damaged, whole]
    ours = decode_with_nvjpeg(files, store_size=40, channels=3, device="cpu")
    assert torch.equal(ours[0], ours[5])
    assert "truncated" in ours[1].lower() and "empty" in ours[2] and isinstance(ours[3], str)


def test_gray_is_decoded_to_one_channel_and_transparency_left_to_the_cpu():
    (ours,), (expected,) = both([file(smooth())], channels=1)
    assert ours.shape[0] == 1 and np.abs(ours.numpy().astype(int) - expected).mean() < 1
    (ours,), (expected,) = both([file(smooth())], channels=4)
    np.testing.assert_array_equal(ours.numpy(), expected)


@pytest.mark.parametrize("data", [b"", b"\xff\xd8", png(pixels()), b"\xff\xd8\xff\xda\xff\xd9"])
def test_a_file_that_is_not_a_jpeg_has_no_jpeg_header(data):
    assert read_jpeg_header(data) is None
