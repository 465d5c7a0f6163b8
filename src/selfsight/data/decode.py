"""Decode image files: photographs to uint8 pixels, others to their samples as they are.

On the CPU, libjpeg decodes most JPEG files and Pillow other photographs; samples.py reads the
files of more bits or channels. For nvJPEG on a GPU see nvjpeg.py.
"""

import functools
import importlib.util
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Shaped, UInt8
from PIL import Image, ImageFile, UnidentifiedImageError
from torch import Tensor

from selfsight.data.image_limits import (
    UnreadableError,
    check_bytes,
    check_pixels,
    max_pixels,
)
from selfsight.data.jpeg_header import ORIENTATION, count_scans, read_jpeg_header
from selfsight.data.npy import MAGIC as NPY_MAGIC
from selfsight.data.npy import read_array
from selfsight.data.png import check_png, load_image_library
from selfsight.data.resize import resize_to_store, stored_size
from selfsight.data.samples import (
    Dtype,
    SampleFormat,
    is_photo,
    read_format,
    read_samples,
    to_stored,
)

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
    samples: SampleFormat | None = None  # if it is not an 8-bit photograph

    @property
    def is_gray(self) -> bool:
        """Whether the image has no color."""
        if self.samples is not None and not self.mode.startswith("I"):
            return self.samples.channels == 1
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
        if is_photo(channels, str(data.dtype)):
            return Header(width, height, MODES[channels])
    samples = read_format(data)
    if samples is not None:
        is_npy_photo = is_photo(samples.channels, samples.dtype)
        mode = MODES[samples.channels] if is_npy_photo else samples.name
        return Header(samples.width, samples.height, mode, None if is_npy_photo else samples)
    assert isinstance(data, bytes)
    with open_with_pillow(data) as image:
        width, height = image.size
        transposed = _pillow_orientation(image) >= 5
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


def _decode_samples(data: Encoded, store_size: int | None, channels: int, dtype: str) -> np.ndarray:
    """Decode an image that is no 8-bit photograph, without reducing its depth."""
    if isinstance(data, np.ndarray):
        return resize_to_store(to_stored(data, channels, dtype), store_size)
    check_bytes(len(data))
    known = read_format(data, channels)
    pixels = None if known is None else read_samples(data, channels)
    orientation = 1 if known is None else known.orientation
    if pixels is None:
        with open_with_pillow(data) as image:
            try:
                orientation = _pillow_orientation(image)
                pixels = np.atleast_3d(np.array(image))
            except Exception as error:
                raise UnreadableError(_pillow_reason(error)) from error
        if pixels.dtype == np.int32 and pixels.min() >= 0 and pixels.max() < 2**16:
            pixels = pixels.astype(np.uint16)  # Pillow's mode I of a 16-bit PGM file
    stored = to_stored(pixels, channels, dtype)
    return _make_upright(resize_to_store(stored, store_size), orientation)


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
    load_image_library()
    try:
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return torch.ops.image.decode_jpeg(encoded, RGB_MODE, False)
    except RuntimeError:
        return None


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
        check_png(data)
    return image


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
    if pixels.dtype != np.uint8:
        raise UnreadableError(f"its values are {pixels.dtype}, and those of this data set uint8")
    height, width, depth = pixels.shape
    if depth == channels and stored_size((width, height), store_size) == (width, height):
        return pixels
    if depth not in MODES or channels not in MODES:
        raise UnreadableError(f"it has {depth} channels, not {channels}")
    image = Image.fromarray(pixels[..., 0] if depth == 1 else pixels)
    return resize_to_store(np.atleast_3d(np.array(_convert_mode(image, channels))), store_size)
