"""Decode any image file to pixels: choose the decoder by the content of the file.

On the CPU, libjpeg (jpeg.py) decodes most JPEG files and Pillow (pillow_formats.py) other
photographs; scientific_images.py reads the files of more bits or channels. A batch of JPEG files is
decoded on a GPU by nvjpeg.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped
from PIL import Image

from selfsight.data.decoders.exif_orientation import make_upright
from selfsight.data.decoders.jpeg import decode_with_libjpeg
from selfsight.data.decoders.npy import MAGIC as NPY_MAGIC
from selfsight.data.decoders.npy import read_array
from selfsight.data.decoders.pillow_formats import (
    MODES,
    convert_mode,
    decode_pillow,
    open_with_pillow,
    pillow_orientation,
    pillow_reason,
)
from selfsight.data.decoders.resize_to_store import resize_to_store, stored_size
from selfsight.data.decoders.scientific_images import (
    Dtype,
    SampleFormat,
    is_photo,
    read_format,
    read_samples,
    to_stored,
)
from selfsight.data.decoders.tiff import MAGICS as TIFF_MAGICS
from selfsight.data.image_limits import UnreadableError, check_bytes

Encoded = bytes | np.ndarray  # a file's content, or HWC pixels that need no decoding
Decoded = np.ndarray | str  # pixels [C, H, W], or the reason why there are none
Crop = Callable[[np.ndarray], np.ndarray]  # HWC pixels of an image at full size to those to store

VERSION = 4  # of the decoded pixels: a change invalidates cached ones


class Header(NamedTuple):
    """Size and mode of an image, read without decoding its pixels."""

    width: int  # upright, after applying the EXIF orientation
    height: int
    mode: str
    samples: SampleFormat | None = None  # if it is not an 8-bit photograph

    @property
    def is_gray(self) -> bool:
        """Whether the image has no color."""
        if self.samples is not None and not self.mode.startswith("I"):
            return self.samples.channels == 1
        return self.mode in ("1", "L", "LA", "I", "F") or self.mode.startswith("I;")


def read_header(data: Encoded) -> Header:
    """Read size and mode without decoding."""
    if isinstance(data, np.ndarray):
        height, width, channels = data.shape
        if is_photo(channels, str(data.dtype)):
            return Header(width, height, MODES[channels])
    samples = read_format(data)
    if samples is not None:
        is_8_bit = is_photo(samples.channels, samples.dtype)
        mode = MODES[samples.channels] if is_8_bit else samples.name
        return Header(samples.width, samples.height, mode, None if is_8_bit else samples)
    assert isinstance(data, bytes)
    with open_with_pillow(data) as image:
        width, height = image.size
        transposed = pillow_orientation(image) >= 5
        size = (height, width) if transposed else (width, height)
        mode = image.mode
        if mode in ("I", "F") or mode.startswith("I;"):  # 16-bit PGM and JPEG 2000, PFM
            dtype: Dtype = "float32" if mode == "F" else "uint16"
            return Header(*size, mode, SampleFormat(*size, 1, dtype, is_color=False))
        return Header(*size, mode)


def decode(
    data: Encoded, *, store_size: int | None, channels: int = 3, dtype: str = "uint8"
) -> Shaped[np.ndarray, "h w c"]:
    """Decode to upright pixels with a short side of at most `store_size`, or at full size.

    Images are never enlarged. Photographs (uint8; 1, 3 or 4 channels) are converted to these
    channels: transparent pixels become white, unless four are requested. Others must have the
    channels and the type that are asked for.
    """
    if not is_photo(channels, dtype):
        return _decode_samples(data, store_size, channels, dtype)
    if isinstance(data, np.ndarray):
        return _convert_pixels(data, store_size, channels)
    check_bytes(len(data))
    if data.startswith(NPY_MAGIC):
        return _convert_pixels(read_array(data), store_size, channels)
    if data.startswith(TIFF_MAGICS):
        samples = read_format(data)
        if samples is not None and is_photo(samples.channels, samples.dtype):
            upright = make_upright(read_samples(data, samples), samples.orientation)
            return _convert_pixels(upright, store_size, channels)
    pixels = decode_with_libjpeg(data, store_size) if channels == 3 else None
    if pixels is not None:
        return pixels
    with open_with_pillow(data) as image:
        try:
            # A JPEG can be decoded at 1/2, 1/4 or 1/8; twice the size leaves room to filter.
            width, height = stored_size(image.size, store_size)
            image.draft(None, (2 * width, 2 * height))
            return decode_pillow(image, store_size=store_size, channels=channels)
        except Exception as error:  # Pillow's plugins raise any exception on broken files
            raise UnreadableError(pillow_reason(error)) from error


def _decode_samples(data: Encoded, store_size: int | None, channels: int, dtype: str) -> np.ndarray:
    """Decode an image that is no 8-bit photograph, without reducing its depth."""
    if isinstance(data, np.ndarray):
        return resize_to_store(to_stored(data, channels, dtype), store_size)
    check_bytes(len(data))
    known = read_format(data, channels)
    if known is not None:
        pixels, orientation = read_samples(data, known, channels), known.orientation
    else:
        with open_with_pillow(data) as image:
            try:
                orientation = pillow_orientation(image)
                pixels = np.atleast_3d(np.array(image))
            except Exception as error:
                raise UnreadableError(pillow_reason(error)) from error
        if pixels.dtype == np.int32 and pixels.min() >= 0 and pixels.max() < 2**16:
            pixels = pixels.astype(np.uint16)  # Pillow's mode I of a 16-bit PGM file
    stored = to_stored(pixels, channels, dtype)
    return make_upright(resize_to_store(stored, store_size), orientation)


def try_decode(
    read: Callable[[], Encoded],
    *,
    channels: int,
    dtype: str = "uint8",
    store_size: int | None = None,
    crop: Crop | None = None,
) -> Decoded:
    """Read and decode one image to pixels [C, H, W], or return the reason why it has none."""
    try:
        pixels = decode(read(), store_size=store_size, channels=channels, dtype=dtype)
        pixels = pixels if crop is None else crop(pixels)
    except (OSError, ValueError) as error:
        return describe_error(error)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def try_read(read: Callable[[int], Encoded], i: int) -> Encoded | str:
    """Read image i without decoding it, or return the reason why it cannot be read."""
    try:
        return read(i)
    except (OSError, ValueError) as error:
        return describe_error(error)


def describe_error(error: Exception) -> str:
    """A short reason why an image could not be read."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def _convert_pixels(pixels: np.ndarray, store_size: int | None, channels: int) -> np.ndarray:
    """Convert pixels that need no decoding as those of a file are."""
    if pixels.dtype != np.uint8:
        raise UnreadableError(f"its values are {pixels.dtype}, and uint8 is expected")
    height, width, depth = pixels.shape
    if depth == channels and stored_size((width, height), store_size) == (width, height):
        return pixels
    if depth not in MODES or channels not in MODES:
        raise UnreadableError(f"it has {depth} channels, not {channels}")
    image = Image.fromarray(pixels[..., 0] if depth == 1 else pixels)
    return resize_to_store(np.atleast_3d(np.array(convert_mode(image, channels))), store_size)
