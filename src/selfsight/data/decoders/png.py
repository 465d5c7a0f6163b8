"""PNG files: their checksums, and those of 16 bits per channel, which Pillow reduces to 8."""

import functools
import importlib
import importlib.util
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from selfsight.data.image_limits import UnreadableError, check_pixels

MAGIC = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # by color type: gray, RGB, gray and alpha, RGB and alpha
UNCHANGED = 0  # torchvision's ImageReadMode.UNCHANGED
WHITE = 65535


class PngHeader(NamedTuple):
    """Size, bits per channel and color type of a PNG file."""

    width: int
    height: int
    bits: int
    color_type: int


def read_png_header(data: bytes) -> PngHeader | None:
    """Read the first chunk of a PNG file; None if it has none."""
    if len(data) < 26 or data[12:16] != b"IHDR":
        return None
    width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
    return PngHeader(width, height, data[24], data[25])


def check_png(data: bytes) -> None:
    """Raise if the pixels of a PNG are not those that were written: decoders do not compare."""
    at, view = 8, memoryview(data)
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        written = int.from_bytes(data[end : end + 4], "big")
        complete = data[at + 4 : at + 8] == b"IDAT" and end + 4 <= len(data)
        if complete and zlib.crc32(view[at + 4 : end]) != written:
            raise UnreadableError("it is damaged: a checksum of the PNG file does not match")
        at = end + 4


@functools.cache
def load_image_library() -> None:
    """Load torchvision's library of image files, or torchvision, which takes two seconds more."""
    spec = importlib.util.find_spec("torchvision")
    folders = () if spec is None else spec.submodule_search_locations or ()
    libraries = [path for folder in folders for path in Path(folder).glob("image*.so")]
    if not libraries:
        importlib.import_module("torchvision.io")
    for path in libraries:
        torch.ops.load_library(path)


def read_deep_png(data: bytes, header: PngHeader) -> np.ndarray:
    """Read a PNG of 16 bits per channel as uint16 [H, W, C]; transparent pixels become white."""
    if header.color_type not in CHANNELS:
        raise UnreadableError(
            "it is a damaged PNG file: one of 16 bits per channel is gray or RGB and has no palette"
        )
    check_pixels(header.width, header.height)
    check_png(data)
    load_image_library()
    try:
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        pixels = torch.ops.image.decode_png(encoded, UNCHANGED, False)
    except RuntimeError as error:
        raise UnreadableError("libpng cannot decode it: the file is damaged") from error
    array: np.ndarray = pixels.permute(1, 2, 0).numpy()
    if header.color_type in (0, 2):
        return array
    color, alpha = array[..., :-1].astype(np.float64), array[..., -1:] / WHITE
    return np.round(color * alpha + WHITE * (1 - alpha)).astype(np.uint16)
