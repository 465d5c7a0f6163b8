"""From the bytes of an image file to uint8 pixels: Pillow for every format, libjpeg for most."""

import functools
import importlib.util
import io
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from PIL import Image, ImageFile, UnidentifiedImageError

from selfsight.data.jpeg_header import jpeg, pixels_of

VERSION = 2  # of what comes out: a change makes cached pixels stale
LONGEST = 4  # long side in store sizes: one panorama would otherwise pad its whole batch
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
ORIENTATION = 0x0112  # EXIF
BITS_PER_SAMPLE = 258  # TIFF
UPRIGHT = {  # orientation: whether rows and columns change places, then which axes are mirrored
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


class UnreadableError(ValueError):
    """An image that cannot be decoded; the message says why."""


class Header(NamedTuple):
    """What a file tells of its image before any pixel is decoded."""

    width: int  # as it stands upright
    height: int
    mode: str

    @property
    def gray(self) -> bool:
        """Whether the image has no colors."""
        return self.mode in ("1", "L", "LA", "I", "F") or self.mode.startswith("I;")


@functools.cache
def heic_readable() -> bool:
    """Whether pillow-heif is installed; if so, Pillow is told of it."""
    if importlib.util.find_spec("pillow_heif") is None:
        return False
    import pillow_heif

    pillow_heif.register_heif_opener()
    return True


def header(data: bytes | np.ndarray) -> Header:
    """Size and mode, without decoding."""
    if isinstance(data, np.ndarray):
        height, width, channels = data.shape
        return Header(width, height, MODES.get(channels, f"{channels} channels"))
    with _opened(data) as image:
        width, height = image.size
        lies = _orientation(image) >= 5
        return Header(*((height, width) if lies else (width, height)), image.mode)


def decode(
    data: bytes | np.ndarray, *, store_size: int, channels: int = 3
) -> UInt8[np.ndarray, "h w c"]:
    """Pixels, upright, with a short side of at most `store_size`; never enlarged.

    What is transparent becomes white, unless four channels are asked for.
    """
    if isinstance(data, np.ndarray):
        return _fitted(data, store_size, channels)
    found = _plain(data, store_size) if channels == 3 else None
    if found is not None:
        return found
    with _opened(data) as image:
        try:
            # A JPEG can be decoded at 1/2, 1/4 or 1/8; twice the size leaves room to filter.
            width, height = stored_size(image.size, store_size)
            image.draft(None, (2 * width, 2 * height))
            orientation = _orientation(image)
            plain = np.atleast_3d(np.array(_converted(_eight_bits(image), channels)))
            return _upright(_shrunk(plain, store_size), orientation)
        except Exception as error:  # Pillow's plugins raise what they like on broken files
            raise UnreadableError(_reason(error)) from error


def _plain(data: bytes, store_size: int) -> np.ndarray | None:
    """A JPEG of colors that is decoded at its full size; Pillow reads all others."""
    told = jpeg(data)
    if told is None or told.components != 3:
        return None
    small = stored_size((told.width, told.height), store_size)
    if min(told.width // small[0], told.height // small[1]) >= 4:  # at half the size or less
        return None
    x = pixels_of(data)
    if x is None:
        return None
    return _upright(_shrunk(x.permute(1, 2, 0).numpy(), store_size), told.orientation)


def _opened(data: bytes) -> ImageFile.ImageFile:
    if not data:
        raise UnreadableError("the file is empty")
    if data[4:8] == b"ftyp" and data[8:12] in HEIC_BRANDS and not heic_readable():
        raise UnreadableError(HEIC_HINT)
    try:
        return Image.open(io.BytesIO(data))
    except Exception as error:
        raise UnreadableError(_reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image that Pillow knows"
    return str(error).strip().split("\n")[0] or type(error).__name__


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged EXIF does not make the pixels unreadable
        return 1


def stored_size(size: tuple[int, int], store_size: int) -> tuple[int, int]:
    """Width and height of the stored image."""
    scale = min(1.0, store_size / min(size), LONGEST * store_size / max(size))
    width, height = (max(1, round(side * scale)) for side in size)
    return width, height


def _shrunk(pixels: np.ndarray, store_size: int) -> np.ndarray:
    """Antialiased; torch gives Pillow's pixels (some differ by one) several times as fast."""
    height, width = pixels.shape[:2]
    size = stored_size((width, height), store_size)
    if size == (width, height):
        return pixels
    x = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    x = F.interpolate(x, size=size[::-1], mode="bicubic", antialias=True)
    return x[0].permute(1, 2, 0).numpy()


def _upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    if orientation not in UPRIGHT:
        return pixels
    swapped, mirrored = UPRIGHT[orientation]
    return np.flip(pixels.swapaxes(0, 1) if swapped else pixels, mirrored).copy()


def _eight_bits(image: Image.Image) -> Image.Image:
    """Deeper images scaled by the depth of their file."""
    mode = image.mode
    if mode not in ("I", "F") and not mode.startswith("I;"):
        return image
    values = np.asarray(image).astype(np.float64)
    if mode == "F":  # no depth to go by: 0..1, else 0..255
        top = 1.0 if values.max() <= 1 else 255.0
    else:
        top = 2.0 ** getattr(image, "tag_v2", {}).get(BITS_PER_SAMPLE, (16,))[0] - 1
    return Image.fromarray(np.clip(values * (255 / top) + 0.5, 0, 255).astype(np.uint8))


def _converted(image: Image.Image, channels: int) -> Image.Image:
    clear = "transparency" in image.info or image.mode in ("LA", "La", "PA", "RGBA", "RGBa")
    if clear:
        image = image.convert("RGBA")
    if clear and channels != 4:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == MODES[channels] else image.convert(MODES[channels])


def _fitted(pixels: np.ndarray, store_size: int, channels: int) -> np.ndarray:
    """Pixels that need no decoding, treated as those of a file are."""
    height, width, own = pixels.shape
    if own == channels and stored_size((width, height), store_size) == (width, height):
        return pixels
    if own not in MODES or channels not in MODES:
        raise UnreadableError(f"it has {own} channels, not {channels}")
    image = Image.fromarray(pixels[..., 0] if own == 1 else pixels)
    return _shrunk(np.atleast_3d(np.array(_converted(image, channels))), store_size)
