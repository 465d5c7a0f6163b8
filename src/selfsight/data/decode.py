"""Decode image files to uint8 pixels.

On the CPU, libjpeg decodes most JPEG files and Pillow everything else. For nvJPEG on a GPU see
nvjpeg.py.
"""

import functools
import importlib.util
import io
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageFile, UnidentifiedImageError
from torch import Tensor

from selfsight.data.image_limits import (
    UnreadableError,
    check_bytes,
    check_pixels,
    max_pixels,
)
from selfsight.data.jpeg_header import ORIENTATION, count_scans, read_jpeg_header
from selfsight.data.resize import resize_to_store, stored_size

Encoded = bytes | np.ndarray  # a file's content, or HWC pixels that need no decoding
Decoded = np.ndarray | str  # pixels [C, H, W], or the reason why there are none
Crop = Callable[[np.ndarray], np.ndarray]  # HWC pixels of an image at full size to those to store

VERSION = 2  # of the decoded pixels: a change invalidates cached ones
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
BITS_PER_SAMPLE = 258  # TIFF tag
RGB_MODE = 3  # torchvision's ImageReadMode.RGB
UPRIGHT = {  # EXIF orientation: whether to transpose, then which axes to flip
    2: (False, (1,)),
    3: (False, (0, 1)),
    4: (False, (0,)),
    5: (True, ()),
    6: (True, (1,)),
    7: (True, (0, 1)),
    8: (True, (0,)),
}
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
HEIC_HINT = "HEIC needs one more package: pip install 'selfsight[heic]'"

# Pillow guesses the format from the content, and for PostScript it would start Ghostscript. TGA has
# no signature, so it comes last.
FORMATS = (
    *("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF"),
    "TGA",
)
USUAL_SCANS = 20  # of a progressive JPEG; encoders write about ten
MAX_SCANNED = 4  # times the limit of pixels, over all scans: each of thousands would take as long
STRIP = 1 << 22  # pixels of deep images that are converted at once


class Header(NamedTuple):
    """Size and mode of an image, read without decoding its pixels."""

    width: int  # upright, after applying the EXIF orientation
    height: int
    mode: str

    @property
    def is_gray(self) -> bool:
        """Whether the image has no color."""
        return self.mode in ("1", "L", "LA", "I", "F") or self.mode.startswith("I;")


@functools.cache
def list_formats() -> tuple[str, ...]:
    """The formats that are read, as far as Pillow was built with them."""
    heic_readable()
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@functools.cache
def heic_readable() -> bool:
    """Whether pillow-heif is installed; if so, register it with Pillow."""
    if importlib.util.find_spec("pillow_heif") is None:
        return False
    import pillow_heif

    pillow_heif.register_heif_opener()
    return True


def read_header(data: Encoded) -> Header:
    """Read size and mode without decoding."""
    if isinstance(data, np.ndarray):
        height, width, channels = data.shape
        return Header(width, height, MODES.get(channels, f"{channels} channels"))
    with open_with_pillow(data) as image:
        width, height = image.size
        transposed = _pillow_orientation(image) >= 5
        return Header(*((height, width) if transposed else (width, height)), image.mode)


def decode(
    data: Encoded, *, store_size: int | None, channels: int = 3
) -> UInt8[np.ndarray, "h w c"]:
    """Decode to upright pixels with a short side of at most `store_size`, or at full size.

    Images are never enlarged. Transparent pixels become white, unless four channels are requested.
    """
    if isinstance(data, np.ndarray):
        return _convert_pixels(data, store_size, channels)
    check_bytes(len(data))
    pixels = _decode_with_libjpeg(data, store_size) if channels == 3 else None
    if pixels is not None:
        return pixels
    with open_with_pillow(data) as image:
        try:
            # A JPEG can be decoded at 1/2, 1/4 or 1/8; twice the size leaves room to filter.
            width, height = stored_size(image.size, store_size)
            image.draft(None, (2 * width, 2 * height))
            return decode_pillow(image, store_size=store_size, channels=channels)
        except Exception as error:  # Pillow's plugins raise any exception on broken files
            raise UnreadableError(_pillow_reason(error)) from error


def decode_pillow(
    image: Image.Image, *, store_size: int | None, channels: int
) -> UInt8[np.ndarray, "h w c"]:
    """Convert an image of Pillow to upright pixels."""
    orientation = _pillow_orientation(image)
    pixels = np.atleast_3d(np.array(_convert_mode(_to_eight_bits(image), channels)))
    return _make_upright(resize_to_store(pixels, store_size), orientation)


def try_decode(
    read: Callable[[], Encoded],
    *,
    channels: int,
    store_size: int | None = None,
    crop: Crop | None = None,
) -> Decoded:
    """Read and decode one image to pixels [C, H, W], or return the reason why it has none."""
    try:
        pixels = decode(read(), store_size=store_size, channels=channels)
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


@contextmanager
def pillow_warnings_ignored() -> Iterator[None]:
    """Ignore Pillow's warnings about huge or odd files; real problems come back as a reason.

    The filter belongs to the whole process, so it is set around threads, not within them.
    """
    with warnings.catch_warnings():
        ignore_pillow_warnings()
        yield


def ignore_pillow_warnings() -> None:
    """As `pillow_warnings_ignored`, until the process ends: for decoding in the background."""
    warnings.filterwarnings("ignore", module=r"PIL\b")


def decode_rgb_jpeg(data: bytes) -> UInt8[Tensor, "3 h w"] | None:
    """Decode a JPEG to RGB without rotating it; None if libjpeg fails.

    The pixels equal Pillow's. Unlike Pillow, libjpeg is called without holding the interpreter's
    lock: with 16 threads Pillow reads 1,300 files of 500 x 375 a second, with 4 threads 1,700.
    """
    load_libjpeg()
    try:
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return torch.ops.image.decode_jpeg(encoded, RGB_MODE, False)
    except RuntimeError:
        return None


@functools.cache
def load_libjpeg() -> None:
    """Load torchvision's library of image files, or torchvision, which takes two seconds more."""
    spec = importlib.util.find_spec("torchvision")
    folders = () if spec is None else spec.submodule_search_locations or ()
    libraries = [path for folder in folders for path in Path(folder).glob("image*.so")]
    if not libraries:
        importlib.import_module("torchvision.io")
    for path in libraries:
        torch.ops.load_library(path)


def _decode_with_libjpeg(data: bytes, store_size: int | None) -> np.ndarray | None:
    """Decode a color JPEG at its full size; None for every file that Pillow has to read."""
    header = read_jpeg_header(data)
    if header is None or header.components != 3:
        return None
    check_pixels(header.width, header.height)
    _check_scans(data, header.width, header.height)
    width, height = stored_size((header.width, header.height), store_size)
    if min(header.width // width, header.height // height) >= 4:  # Pillow decodes at a fraction
        return None
    x = decode_rgb_jpeg(data)
    if x is None:
        return None
    pixels = resize_to_store(x.permute(1, 2, 0).numpy(), store_size)
    return _make_upright(pixels, header.orientation)


def open_with_pillow(data: bytes) -> ImageFile.ImageFile:
    """Open an image of a known format within the limits; its pixels are not decoded yet."""
    if not data:
        raise UnreadableError("the file is empty")
    if data[4:8] == b"ftyp" and data[8:12] in HEIC_BRANDS and not heic_readable():
        raise UnreadableError(HEIC_HINT)
    limit = max_pixels()
    if Image.MAX_IMAGE_PIXELS is not None and limit > 2 * Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = limit  # the user has raised ours above Pillow's
    try:
        formats = list_formats()
        formats = formats if _is_tga(data) else tuple(f for f in formats if f != "TGA")
        image = Image.open(io.BytesIO(data), formats=formats)
    except Exception as error:
        raise UnreadableError(_pillow_reason(error)) from error
    check_pixels(*image.size)
    if image.format in ("JPEG", "MPO"):
        _check_scans(data, *image.size)
    elif image.format == "PNG":
        _check_png(data)
    return image


def _check_png(data: bytes) -> None:
    """Raise if the pixels of a PNG are not those that were written: Pillow does not compare."""
    at, view = 8, memoryview(data)
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        written = int.from_bytes(data[end : end + 4], "big")
        complete = data[at + 4 : at + 8] == b"IDAT" and end + 4 <= len(data)
        if complete and zlib.crc32(view[at + 4 : end]) != written:
            raise UnreadableError("it is damaged: a checksum of the PNG file does not match")
        at = end + 4


def _is_tga(data: bytes) -> bool:
    """Whether a file ends as TGA 2 does, or has the length that an uncompressed TGA 1 claims.

    TGA 1 has no signature: Pillow would decode damaged files of other formats as such.
    """
    if data.endswith(b"TRUEVISION-XFILE.\0"):
        return True
    if len(data) < 18 or data[2] not in (1, 2, 3):
        return False
    colors, width, height = (int.from_bytes(data[i : i + 2], "little") for i in (5, 12, 14))
    palette = colors * (-(-data[7] // 8)) if data[1] else 0
    return len(data) == 18 + data[0] + palette + width * height * (-(-data[16] // 8))


def _check_scans(data: bytes, width: int, height: int) -> None:
    """Raise if the scans of a progressive JPEG would take minutes."""
    scans = count_scans(data, usual=USUAL_SCANS)
    if scans > USUAL_SCANS and scans * width * height > MAX_SCANNED * max_pixels():
        raise UnreadableError(
            f"it is a JPEG of {scans} scans, each of {width} x {height} pixels, which would take "
            "very long"
        )


def _pillow_reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image that Pillow can read"
    return str(error).strip().split("\n")[0] or type(error).__name__


def _pillow_orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged EXIF does not make the pixels unreadable
        return 1


def _make_upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    if orientation not in UPRIGHT:
        return pixels
    transpose, flipped = UPRIGHT[orientation]
    return np.flip(pixels.swapaxes(0, 1) if transpose else pixels, flipped).copy()


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """Scale deeper images by the bit depth of their file."""
    mode = image.mode
    if mode not in ("I", "F") and not mode.startswith("I;"):
        return image
    values = np.asarray(image)
    if mode == "F":  # no bit depth: 0..1, else 0..255
        top = 1.0 if values.max() <= 1 else 255.0
    else:
        top = 2.0 ** getattr(image, "tag_v2", {}).get(BITS_PER_SAMPLE, (16,))[0] - 1
    pixels = np.empty(values.shape, np.uint8)
    rows = max(1, STRIP // image.width)
    for first in range(0, len(values), rows):  # float64 takes eight times the memory of bytes
        strip = values[first : first + rows].astype(np.float64) * (255 / top) + 0.5
        with np.errstate(invalid="ignore"):  # NaN
            pixels[first : first + rows] = np.clip(strip, 0, 255).astype(np.uint8)
    return Image.fromarray(pixels)


def _convert_mode(image: Image.Image, channels: int) -> Image.Image:
    """Convert to the mode of this many channels, on white if the image is transparent."""
    has_alpha = "transparency" in image.info or image.mode in ("LA", "La", "PA", "RGBA", "RGBa")
    if has_alpha:
        image = image.convert("RGBA")
    if has_alpha and channels != 4:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == MODES[channels] else image.convert(MODES[channels])


def _convert_pixels(pixels: np.ndarray, store_size: int | None, channels: int) -> np.ndarray:
    """Convert pixels that need no decoding as those of a file are."""
    height, width, depth = pixels.shape
    if depth == channels and stored_size((width, height), store_size) == (width, height):
        return pixels
    if depth not in MODES or channels not in MODES:
        raise UnreadableError(f"it has {depth} channels, not {channels}")
    image = Image.fromarray(pixels[..., 0] if depth == 1 else pixels)
    return resize_to_store(np.atleast_3d(np.array(_convert_mode(image, channels))), store_size)
