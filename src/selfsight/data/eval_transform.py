"""The evaluation transform: how an image is prepared for evaluation.

Decode at full size on the CPU, resize once with antialiasing, crop the center, normalize. It
depends only on the encoder. Pixels of photographs are bytes until they are normalized, and every
step until then is integer arithmetic on the CPU, so that they are equal on all machines. Other
images keep their type, and are resized in float32.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float32, Shaped
from PIL import Image
from torch import Tensor

from selfsight.check_settings import ANY, CHANNELS, PIXELS, POSITIVE, Range, check_settings
from selfsight.data.decoders.decode_image import decode, describe_error
from selfsight.data.decoders.pillow_formats import decode_pillow
from selfsight.data.decoders.resize_to_store import resize_samples
from selfsight.data.decoders.scientific_images import Dtype, is_photo
from selfsight.data.image_limits import UnreadableError
from selfsight.data.sources.remote_files import read_file
from selfsight.errors import UserError

Interpolation = Literal["bilinear", "bicubic"]
ImageLike = str | Path | Image.Image | np.ndarray | Tensor
"""A file, an image of Pillow, pixels [H, W, C] of numpy or [C, H, W] of torch, both of the type
that the encoder was trained on: uint8 for photographs."""

# ImageNet statistics, as in all published code cited here.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
# Values of bytes that become 0 and 1.
LOW: tuple[float, ...] = (0.0,)
HIGH: tuple[float, ...] = (255.0,)

RESIZED_FROM = 96  # smaller crops are whole images: thumbnails have no border to leave out
RANGES: dict[str, Range] = {
    "size": PIXELS,
    "resize": PIXELS,
    "std": POSITIVE,
    "channels": CHANNELS,
    "low": ANY,
    "high": ANY,
}
MAX_ASPECT = 100  # a longer image is first cut to its center, which bounds the memory of a resize


@dataclass(frozen=True, kw_only=True)
class EvalTransform:
    """Resize the short side to `resize`, crop the center `size` pixels, normalize.

    The values `low` and `high` of a pixel become 0 and 1, then mean and std normalize.
    Without `keep_aspect` both sides are resized to `resize`. Call it with an image, or with a
    sequence of images, to get what the encoder expects.
    """

    size: int = 224
    resize: int = 256
    keep_aspect: bool = True
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    channels: int = 3
    dtype: Dtype = "uint8"
    low: tuple[float, ...] = LOW
    high: tuple[float, ...] = HIGH

    def __post_init__(self) -> None:
        check_settings(self, "transform.", RANGES)
        check_statistics(self.mean, self.std, "transform.")
        check_range(self.low, self.high, "transform.")
        if self.resize < self.size:
            raise UserError(
                f"resize is {self.resize}, but the crop of {self.size} pixels must fit in it. "
                f"Raise resize to {self.size} or more, or lower size."
            )
        for names, values in (("mean and std", self.mean), ("low and high", self.low)):
            if len(values) not in (1, self.channels):
                raise UserError(
                    f"{names} have {len(values)} numbers but the images have {self.channels} "
                    "channels. Give one number for all, or one for each channel."
                )

    @property
    def crop_share(self) -> float:
        """Side of the crop as a share of the resized side."""
        return self.size / self.resize

    @property
    def cropping(self) -> dict[str, Any]:
        """The settings that decide the pixels: all but mean, std and their range."""
        names = ("size", "resize", "keep_aspect", "interpolation", "channels")
        dtype = {} if self.dtype == "uint8" else {"dtype": self.dtype}
        return {name: getattr(self, name) for name in names} | dtype

    def settings(self) -> dict[str, Any]:
        """All settings, for the result file."""
        statistics = {"mean": list(self.mean), "std": list(self.std)}
        if not self.has_bytes:
            statistics |= {"low": list(self.low), "high": list(self.high)}
        return self.cropping | {"crop_share": round(self.crop_share, 4)} | statistics

    @property
    def has_bytes(self) -> bool:
        """Whether 0 and 255 become 0 and 1, as in photographs."""
        return (self.low, self.high) == (LOW, HIGH)

    def crop(self, pixels: Shaped[np.ndarray, "h w c"]) -> Shaped[np.ndarray, "s s c"]:
        """Resize with antialiasing and crop the center, as torchvision does for bytes."""
        pixels = _cut_to_aspect(pixels) if self.keep_aspect else pixels
        pixels = np.require(pixels, requirements=("C", "W"))  # torch asks for writable memory
        height, width = resized_size(pixels.shape[:2], self)
        if (height, width) != pixels.shape[:2]:
            pixels = resize_samples(pixels, (height, width), self.interpolation)
        # To even, as torchvision does.
        top, left = (round((side - self.size) / 2) for side in (height, width))
        return pixels[top : top + self.size, left : left + self.size]

    def normalize(self, crops: Shaped[Tensor, "*n c s s"]) -> Float32[Tensor, "*n c s s"]:
        """Convert to [0, 1], subtract the mean and divide by the std: equal on any device."""
        if not self.has_bytes:
            low, high, mean, std = (
                _fill(values, crops.device) for values in (self.low, self.high, self.mean, self.std)
            )
            return crops.float().sub(low).div_(high - low).sub_(mean).div_(std)
        # Division by a tensor is exact on a GPU, division by a Python number is not.
        scale, mean, std = (
            _fill(values, crops.device) for values in ((255.0,), self.mean, self.std)
        )
        return crops.float().div_(scale).sub_(mean).div_(std)

    def __call__(self, images: ImageLike | Sequence[ImageLike]) -> Float32[Tensor, "*n c s s"]:
        """Transform an image to [C, S, S], or several to [N, C, S, S]."""
        if is_single(images):
            pixels = load_pixels(images, self.channels, self.dtype)  # type: ignore[arg-type]
            crop = torch.from_numpy(self.crop(pixels)).permute(2, 0, 1)
            return self.normalize(crop.contiguous())
        if not len(images):  # type: ignore[arg-type]
            return torch.zeros(0, self.channels, self.size, self.size)
        return torch.stack([self(image) for image in images])  # type: ignore[union-attr]


def standard_transform(
    size: int,
    *,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    channels: int = 3,
    **pixels: Any,
) -> EvalTransform:
    """Build the transform of this project: bilinear, the crop 7/8 of the resized short side.

    Crops below 96 pixels are not cut out of a larger image. Statistics for another number of
    channels are averaged into one for all channels. `pixels` are dtype, low and high of images that
    are not photographs.
    """
    resize = size if size < RESIZED_FROM else size * 8 // 7
    if len(mean) not in (1, channels):
        mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
    return EvalTransform(
        size=size, resize=resize, mean=tuple(mean), std=tuple(std), channels=channels, **pixels
    )


def with_size(transform: EvalTransform, size: int) -> EvalTransform:
    """Return the transform for another size of crop, with the same crop share."""
    resize = max(size, int(size / transform.crop_share + 1e-9))
    return replace(transform, size=size, resize=resize)


def resized_size(size: Sequence[int], transform: EvalTransform) -> tuple[int, int]:
    """Height and width after the resize of an image of this height and width."""
    if not transform.keep_aspect:
        return transform.resize, transform.resize
    short = min(size)
    height, width = (int(transform.resize * side / short) for side in size)  # truncated, as theirs
    return height, width


def load_pixels(
    image: ImageLike, channels: int, dtype: str = "uint8"
) -> Shaped[np.ndarray, "h w c"]:
    """Load one image at full size, as the files of a data set are decoded."""
    name = str(image) if isinstance(image, str | Path) else type(image).__name__
    try:
        if isinstance(image, Image.Image) and is_photo(channels, dtype):
            return decode_pillow(image, store_size=None, channels=channels)
        if isinstance(image, str | Path):
            data = read_file(os.path.expanduser(image))
            return decode(data, store_size=None, channels=channels, dtype=dtype)
        if isinstance(image, Image.Image):
            image = np.atleast_3d(np.array(image))
        pixels = image.permute(1, 2, 0).cpu().numpy() if isinstance(image, Tensor) else image
        if str(pixels.dtype) != dtype:
            from_0 = "pixels from 0 to 255 as uint8" if dtype == "uint8" else f"pixels as {dtype}"
            raise UserError(
                f"The image is a {name} of {pixels.dtype}; {from_0} are expected: [H, W, C] in "
                "numpy, [C, H, W] in torch."
            )
        return decode(pixels, store_size=None, channels=channels, dtype=dtype)
    except (OSError, UnreadableError) as error:
        raise UserError(f"{name} cannot be read: {describe_error(error)}.") from error


def check_statistics(mean: Sequence[float], std: Sequence[float], prefix: str) -> None:
    """Raise a UserError unless mean and std can normalize; `prefix` is put before their names."""
    if len(mean) != len(std) or not mean or not min(std) > 0:
        raise UserError(
            f"{prefix}mean is {tuple(mean)} and {prefix}std is {tuple(std)}, but one number per "
            "channel (or one for all) is expected in each, with std above 0. Give as many of each."
        )


def check_range(low: Sequence[float], high: Sequence[float], prefix: str) -> None:
    """Raise a UserError unless pixels can be scaled from low to high."""
    rising = all(a < b for a, b in zip(low, high, strict=False))
    if len(low) != len(high) or not low or not rising:
        raise UserError(
            f"{prefix}low is {tuple(low)} and {prefix}high is {tuple(high)}, but one number per "
            "channel (or one for all) is expected in each, with low below high. Give as many of "
            "each."
        )


def _cut_to_aspect(pixels: np.ndarray) -> np.ndarray:
    """Cut a very long image to its center."""
    limit = MAX_ASPECT * min(pixels.shape[:2])
    starts = [max(0, side - limit) // 2 for side in pixels.shape[:2]]
    return pixels[starts[0] :, starts[1] :][:limit, :limit]


def is_single(images: Any) -> bool:
    """Whether this is one image, not several."""
    if isinstance(images, np.ndarray | Tensor):
        return images.ndim == 3
    return isinstance(images, str | Path | Image.Image)


def _fill(values: tuple[float, ...], device: torch.device) -> Float32[Tensor, "_ 1 1"]:
    """One number per channel, filled on the device, since a copy from the host would wait."""
    numbers = [torch.full((1, 1), v, device=device, dtype=torch.float32) for v in values]
    return torch.stack(numbers)
