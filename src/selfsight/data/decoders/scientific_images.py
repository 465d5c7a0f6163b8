"""Read images that are not 8-bit photographs, without reducing their type or channels.

A stored image is uint8, uint16 or float32 with 1 to 16 channels. Other integers and floats become
float32. decode_image.py reads 8-bit gray and color.
"""

from typing import Literal, NamedTuple

import numpy as np

from selfsight.data.decoders.npy import MAGIC as NPY_MAGIC
from selfsight.data.decoders.npy import MAX_CHANNELS, find_channels, read_array, read_array_header
from selfsight.data.decoders.png import MAGIC as PNG_MAGIC
from selfsight.data.decoders.png import read_deep_png, read_png_header
from selfsight.data.decoders.tiff import MAGICS as TIFF_MAGICS
from selfsight.data.decoders.tiff import Page, check_samples, read_page, read_pages
from selfsight.data.image_limits import UnreadableError

Dtype = Literal["uint8", "uint16", "float32"]
PHOTO_CHANNELS = (1, 3, 4)  # gray, color, color and transparency: what Pillow reads in 8 bits


class SampleFormat(NamedTuple):
    """Size and type of an image, read without decoding it."""

    width: int  # upright
    height: int
    channels: int
    dtype: Dtype
    is_color: bool  # three channels that are red, green and blue
    orientation: int = 1

    @property
    def name(self) -> str:
        """A short name, such as "16-bit RGB" or "float32, 6 channels"."""
        if self.dtype == "uint16" and (self.is_color or self.channels == 1):
            return f"16-bit {'RGB' if self.is_color else 'gray'}"
        return f"{self.dtype}, {self.channels} channel{'s' * (self.channels > 1)}"


def is_photo(channels: int, dtype: str) -> bool:
    """Whether images of this kind are decoded as photographs: 8-bit gray or color."""
    return dtype == "uint8" and channels in PHOTO_CHANNELS


def read_format(data: bytes | np.ndarray, channels: int | None = None) -> SampleFormat | None:
    """Read size and type of an image; None if it is one that decode_image.py reads in 8 bits.

    `channels` is how many are expected: it decides between pages and channels, and between axes.
    """
    if isinstance(data, np.ndarray):
        height, width, depth = data.shape
        return SampleFormat(width, height, depth, stored_dtype(data.dtype), is_color=False)
    if data.startswith(NPY_MAGIC):
        header = read_array_header(data)
        axis = find_channels(header.shape, channels)
        height, width = (side for k, side in enumerate(header.shape) if k != axis)
        depth = 1 if axis is None else header.shape[axis]
        return SampleFormat(width, height, depth, stored_dtype(header.dtype), is_color=False)
    if data.startswith(PNG_MAGIC):
        png = read_png_header(data)
        if png is None or png.bits != 16:
            return None
        is_color = png.color_type in (2, 6)
        depth = 3 if is_color else 1
        return SampleFormat(png.width, png.height, depth, "uint16", is_color)
    if data.startswith(TIFF_MAGICS):
        try:
            pages = read_pages(data)
        except UnreadableError:
            if channels not in (None, *PHOTO_CHANNELS):
                raise
            return None  # Pillow may read it, or says why not
        return _describe_tiff(pages, channels) if pages else None
    return None


def read_samples(data: bytes, known: SampleFormat, channels: int | None = None) -> np.ndarray:
    """Read all samples [H, W, C] of an image that `read_format` has described."""
    if data.startswith(NPY_MAGIC):
        return read_array(data, channels)
    if data.startswith(PNG_MAGIC):
        png = read_png_header(data)
        assert png is not None  # read_format has read it
        return read_deep_png(data, png)
    pages = read_pages(data)
    if known.channels == len(pages) > 1 and pages[0].channels == 1:
        check_samples(pages[0], len(pages))
        return np.concatenate([read_page(data, page) for page in pages], axis=2)
    return read_page(data, pages[0])


def to_stored(pixels: np.ndarray, channels: int, dtype: str) -> np.ndarray:
    """Convert samples to the stored type; raise if type or channels are not as expected."""
    depth, found = pixels.shape[2], stored_dtype(pixels.dtype)
    if found != dtype:
        raise UnreadableError(f"its values are {found}, and {dtype} is expected")
    if depth != channels:
        raise UnreadableError(f"it has {depth} channel{'s' * (depth > 1)}, not {channels}")
    with np.errstate(over="ignore"):  # beyond float32 is infinite, and left out as such
        pixels = np.require(pixels.astype(dtype, copy=False), requirements=("C", "W"))
    if dtype == "float32" and not np.isfinite(pixels).all():
        lost = int((~np.isfinite(pixels)).sum())
        raise UnreadableError(
            f"{lost:,} of its {pixels.size:,} values are NaN or infinite; replace them, for "
            "example by the mean of their channel"
        )
    return pixels


def stored_dtype(dtype: np.dtype) -> Dtype:
    """Type in which samples of a type are stored."""
    if dtype == np.uint8:
        return "uint8"
    return "uint16" if dtype.newbyteorder("=") == np.uint16 else "float32"


def _describe_tiff(pages: list[Page], channels: int | None) -> SampleFormat | None:
    """Describe a TIFF: gray pages of equal size are channels if they are deep or so many."""
    first = pages[0]
    depth = first.channels
    alike = all(page.channels == 1 and page[1:5] == first[1:5] for page in pages)
    if alike and 1 < len(pages) <= MAX_CHANNELS:
        is_deep = first.dtype.itemsize > 1
        if channels == len(pages) or (channels is None and is_deep):
            depth = len(pages)
    if first.is_read_by_pillow and depth in (first.channels, *PHOTO_CHANNELS):
        return None
    if depth > MAX_CHANNELS:
        raise UnreadableError(f"it has {depth} channels, more than {MAX_CHANNELS}")
    size = (first.height, first.width) if first.orientation >= 5 else (first.width, first.height)
    dtype = stored_dtype(first.dtype)
    return SampleFormat(*size, depth, dtype, first.is_color, first.orientation)
