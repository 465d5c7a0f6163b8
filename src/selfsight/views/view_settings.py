"""Settings of a view: how an image is cropped, augmented and normalized."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from selfsight.check_settings import (
    ANY,
    NOT_NEGATIVE,
    PIXELS,
    POSITIVE,
    POSITIVE_SHARE,
    SHARE,
    Range,
    check_settings,
)
from selfsight.data.eval_transform import (
    HIGH,
    LOW,
    MEAN,
    STD,
    Interpolation,
    check_range,
    check_statistics,
)
from selfsight.errors import UserError, suggest

Crop = Literal["random", "shared", "center"]

# Operations between the crop, always first, and normalization, always last.
OPERATIONS = (
    "flip",
    "jitter",
    "gray",
    "blur",
    "solarize",
    "rotate",
    "cutout",
    "sobel",
    "noise",
    "second_crop",
)
RANGES: dict[str, Range] = {
    **dict.fromkeys((name for name in OPERATIONS if name != "jitter"), SHARE),
    "size": PIXELS,
    "scale": POSITIVE_SHARE,
    "ratio": Range(1e-3, 1e3),
    "jitter": NOT_NEGATIVE,
    "jitter_p": SHARE,
    "blur_sigma": Range(0, 1000, low_allowed=False),
    "blur_kernel": POSITIVE_SHARE,
    "solarize_threshold": SHARE,
    "cutout_side": SHARE,
    "noise_sigma": NOT_NEGATIVE,
    "low": ANY,
    "high": ANY,
    "mean": ANY,
    "std": POSITIVE,
}


@dataclass(frozen=True, kw_only=True)
class View:
    """A crop, and operations that are applied to it with some probability, in order."""

    size: int = 224
    crop: Crop = "random"
    """A random resized crop; the same one as in the first view, if scale and ratio are equal
    (shared); or the largest square in the center of the image (center)."""
    scale: tuple[float, float] = (0.2, 1.0)  # fraction of the image's area
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width over height
    interpolation: Interpolation = "bilinear"
    flip: float = 0.5
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    """Brightness, contrast, saturation, hue, in a random order."""
    jitter_p: float = 0.8
    gray: float = 0.2
    blur: float = 0.5
    blur_sigma: tuple[float, float] = (0.1, 2.0)  # pixels of the view
    blur_kernel: float | None = None
    """Kernel width as a fraction of the side; None: three sigma on each side, as in PIL."""
    solarize: float = 0.0
    solarize_threshold: float = 0.5
    rotate: float = 0.0
    """Probability of a rotation by 90, 180 or 270 degrees."""
    cutout: float = 0.0
    cutout_side: float = 0.5
    """Side of the box as a fraction of the view's; any center, filled with the mean."""
    sobel: float = 0.0
    noise: float = 0.0
    noise_sigma: float = 0.1
    second_crop: float = 0.0
    """Probability of a random resized crop of the view itself, at its place in the order."""
    order: tuple[str, ...] = OPERATIONS
    """Between the crop, always first, and normalization, always last."""
    low: tuple[float, ...] = LOW
    high: tuple[float, ...] = HIGH
    """Values of a pixel that become 0 and 1, for each channel or one for all: 255 is white."""
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    def __post_init__(self) -> None:
        check_settings(self, "views.", RANGES)
        for name in ("scale", "ratio", "blur_sigma"):
            _check_rising(name, getattr(self, name))
        check_statistics(self.mean, self.std, "views.")
        check_range(self.low, self.high, "views.")
        if self.jitter[3] > 0.5:
            raise UserError(
                f"views.jitter is {self.jitter}, but its last number, hue, is at most 0.5. Write "
                "brightness, contrast, saturation and hue."
            )
        self._check_order()

    def probability(self, operation: str) -> float:
        """Return the probability of an operation; with 0 it is not computed at all."""
        if operation == "jitter":
            return self.jitter_p if any(self.jitter) else 0.0
        return float(getattr(self, operation))

    @property
    def crop_ranges(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the ranges of scale and ratio that the first crop is sampled from."""
        if self.crop == "center":  # no box of four times the image fits, so the center is used
            return (4.0, 4.0), (1.0, 1.0)
        return self.scale, self.ratio

    def _check_order(self) -> None:
        for name in self.order:
            if name not in OPERATIONS:
                raise UserError(
                    f'views.order names "{name}", which is not an operation.'
                    f"{suggest(name, OPERATIONS)} Known: {', '.join(OPERATIONS)}; the crop is "
                    "always first and normalization always last."
                )
        if len(set(self.order)) != len(self.order):
            raise UserError(f"views.order is {self.order}: name each operation once.")
        for name in OPERATIONS:
            if self.probability(name) > 0 and name not in self.order:
                raise UserError(
                    f"views.{name} has probability {self.probability(name)} but is missing in "
                    f'order. Add "{name}" to order, or set its probability to 0.'
                )


def for_channels(view: View, channels: int, *, is_color: bool = True) -> View:
    """Adapt a view to images with this many channels.

    Saturation, hue and gray need red, green and blue; they become 0 for any other number, and for
    three channels that are other colors.
    Statistics for another number of channels are averaged into one for all channels.
    """
    changes: dict[str, Any] = {}
    if len(view.mean) not in (1, channels):
        changes["mean"] = (sum(view.mean) / len(view.mean),)
        changes["std"] = (sum(view.std) / len(view.std),)
    if channels != 3 or not is_color:
        changes |= {"jitter": (*view.jitter[:2], 0.0, 0.0), "gray": 0.0}
    return replace(view, **changes)


def check_channels(view: View, channels: int) -> None:
    """Raise a UserError if a view cannot be applied to images with this many channels."""
    for names, values in (("mean and std", view.mean), ("low and high", view.low)):
        if len(values) not in (1, channels):
            raise UserError(
                f"{names} have {len(values)} numbers but the images have {channels} "
                "channels. Give one number for all, or one for each channel."
            )
    if channels == 3:
        return
    needs = {
        "jitter's saturation": view.jitter_p * view.jitter[2],
        "jitter's hue": view.jitter_p * view.jitter[3],
        "gray": view.gray,
    }
    unsupported = " and ".join(name for name, value in needs.items() if value > 0)
    if unsupported:
        raise UserError(
            f"The view changes colors that the images do not have: they have {channels} "
            f"channels, and 3 (red, green, blue) are expected. Set {unsupported} to 0, or pass "
            f"the view through for_channels(view, {channels})."
        )


def _check_rising(name: str, value: Sequence[float]) -> None:
    if value[0] > value[1]:
        raise UserError(
            f"views.{name} is {tuple(value)}, but a lowest and a highest number are expected. "
            "Write the smaller one first."
        )
