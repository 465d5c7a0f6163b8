"""Formats that Pillow reads: open a file within the limits, convert its mode, white below alpha.

Also HEIC by pillow-heif, and deeper gray images reduced to eight bits.
"""

import functools
import importlib.util
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageFile, UnidentifiedImageError

from selfsight.data.decoders.exif_orientation import ORIENTATION, make_upright
from selfsight.data.decoders.jpeg import check_scans
from selfsight.data.decoders.png import check_png
from selfsight.data.decoders.resize_to_store import resize_to_store
from selfsight.data.image_limits import UnreadableError, check_pixels, max_pixels

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
BITS_PER_SAMPLE = 258  # TIFF tag
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
HEIC_HINT = "HEIC needs one more package: pip install 'selfsight[heic]'"
# Pillow guesses the format from the content, and for PostScript it would start Ghostscript. TGA has
# no signature, so it comes last.
FORMATS = (
    *("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF"),
    "TGA",
)
STRIP = 1 << 22  # pixels of deep images that are converted at once


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
        raise UnreadableError(pillow_reason(error)) from error
    check_pixels(*image.size)
    if image.format in ("JPEG", "MPO"):
        check_scans(data, *image.size)
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


def decode_pillow(
    image: Image.Image, *, store_size: int | None, channels: int
) -> UInt8[np.ndarray, "h w c"]:
    """Convert an image of Pillow to upright pixels."""
    orientation = pillow_orientation(image)
    pixels = np.atleast_3d(np.array(convert_mode(_to_eight_bits(image), channels)))
    return make_upright(resize_to_store(pixels, store_size), orientation)


def pillow_orientation(image: Image.Image) -> int:
    """The orientation that EXIF gives an image; 1 (upright) if there is none.

    Pillow turns a TIFF upright itself when it is loaded.
    """
    if image.format == "TIFF":
        return 1
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged EXIF does not make the pixels unreadable
        return 1


def pillow_reason(error: Exception) -> str:
    """A short reason why Pillow could not read an image."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image that Pillow can read"
    return str(error).strip().split("\n")[0] or type(error).__name__


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


def convert_mode(image: Image.Image, channels: int) -> Image.Image:
    """Convert to the mode of this many channels, on white if the image is transparent."""
    has_alpha = "transparency" in image.info or image.mode in ("LA", "La", "PA", "RGBA", "RGBa")
    if has_alpha:
        image = image.convert("RGBA")
    if has_alpha and channels != 4:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == MODES[channels] else image.convert(MODES[channels])


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
