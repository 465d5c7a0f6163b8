"""JPEG files on the CPU: read size and orientation without decoding, and decode by libjpeg."""

import re
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from selfsight.data.decoders.exif_orientation import jpeg_orientation, make_upright
from selfsight.data.decoders.png import load_image_library
from selfsight.data.decoders.resize_to_store import resize_to_store, stored_size
from selfsight.data.image_limits import UnreadableError, check_pixels, max_pixels

END_MARKER_WITHIN = 4096  # bytes from the end in which a complete JPEG has its end marker
FRAMES = {0xC0, 0xC1, 0xC2}  # JPEG markers: baseline, extended, progressive
STANDALONE = {0x01, *range(0xD0, 0xD8)}  # JPEG markers without a length
EXIF = b"Exif\0\0"
XMP = b"http://ns.adobe.com/xap/1.0/\0"
SCAN = b"\xff\xda"
MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # within or after the pixels of a scan
RGB_MODE = 3  # torchvision's ImageReadMode.RGB
USUAL_SCANS = 20  # of a progressive JPEG; encoders write about ten
MAX_SCANNED = 4  # times the limit of pixels, over all scans: each of thousands would take as long


class JpegHeader(NamedTuple):
    """Size, number of components and EXIF orientation from the markers of a JPEG file."""

    width: int  # as stored in the file
    height: int
    components: int
    orientation: int


def read_jpeg_header(data: bytes) -> JpegHeader | None:
    """Read the markers of a JPEG file; None if only Pillow can decode it."""
    if data[:2] != b"\xff\xd8" or data.rfind(b"\xff\xd9", -END_MARKER_WITHIN) < 0:
        return None
    at, exif, xmp, frame = 2, b"", b"", None
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF or marker in STANDALONE:  # 0xFF is padding
            at += 1 if marker == 0xFF else 2
            continue
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        body = data[at + 4 : at + 2 + length]
        if marker == 0xE1 and body.startswith(EXIF):
            exif += body[len(EXIF) :]  # a long block is split over several markers
        elif marker == 0xE1 and body.startswith(XMP):
            xmp = body[len(XMP) :]
        elif marker in FRAMES:
            if len(body) < 6 or body[0] != 8:  # bits per sample
                return None
            frame = body
        elif 0xC3 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return None
        elif marker == 0xDA:  # the pixels follow
            break
        at += 2 + length
    orientation = jpeg_orientation(exif, xmp)
    if frame is None or orientation is None:
        return None
    height, width = (int.from_bytes(frame[i : i + 2], "big") for i in (1, 3))
    return JpegHeader(width, height, frame[5], orientation) if height and width else None


def count_scans(data: bytes, *, usual: int) -> int:
    """Number of scans of a JPEG file; an upper bound where it is at most `usual`."""
    scans = data.count(SCAN)  # also finds those in thumbnails and other metadata
    if scans <= usual:
        return scans
    at, scans = 2, 0
    while (match := MARKER.search(data, at)) and data[match.start() + 1] != 0xD9:
        at = match.start()
        scans += data[at + 1] == SCAN[1]
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return scans


def decode_rgb_jpeg(data: bytes) -> UInt8[Tensor, "3 h w"] | None:
    """Decode a JPEG to RGB without rotating it; None if libjpeg fails.

    The pixels equal Pillow's. Unlike Pillow, libjpeg is called without holding the interpreter's
    lock: with 16 threads Pillow reads 1,300 files of 500 x 375 a second, with 4 threads 1,700.
    """
    load_image_library()
    try:
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return torch.ops.image.decode_jpeg(encoded, RGB_MODE, False)
    except RuntimeError:
        return None


def decode_with_libjpeg(data: bytes, store_size: int | None) -> np.ndarray | None:
    """Decode a color JPEG at its full size; None for every file that Pillow has to read."""
    header = read_jpeg_header(data)
    if header is None or header.components != 3:
        return None
    check_pixels(header.width, header.height)
    check_scans(data, header.width, header.height)
    width, height = stored_size((header.width, header.height), store_size)
    if min(header.width // width, header.height // height) >= 4:  # Pillow decodes at a fraction
        return None
    x = decode_rgb_jpeg(data)
    if x is None:
        return None
    pixels = resize_to_store(x.permute(1, 2, 0).numpy(), store_size)
    return make_upright(pixels, header.orientation)


def check_scans(data: bytes, width: int, height: int) -> None:
    """Raise if the scans of a progressive JPEG would take minutes."""
    scans = count_scans(data, usual=USUAL_SCANS)
    if scans > USUAL_SCANS and scans * width * height > MAX_SCANNED * max_pixels():
        raise UnreadableError(
            f"it is a JPEG of {scans} scans, each of {width} x {height} pixels, which would take "
            "very long"
        )
