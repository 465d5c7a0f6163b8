"""Color operations for Triton kernels, equal to those of `views.color`.

A program handles pixels of one image, whose parameters start at the pointer `p`, so that all its
pixels take the same branches. `no_type_check` keeps the type checker of the tests from wrapping
functions whose source Triton reads.
"""

from typing import no_type_check

import triton
import triton.language as tl

from selfsight.views.color import LUMA
from selfsight.views.triton.sampling import BRIGHTNESS, GRAY, HUE, RANK, SATURATION, SOLARIZE

RED, GREEN, BLUE = (tl.constexpr(share) for share in LUMA)


@triton.jit
@no_type_check
def jitter(red, green, blue, p, begin, end, planes: tl.constexpr):
    """Apply the steps of jitter, except contrast, whose ranks are in [begin, end)."""
    brightness = tl.load(p + BRIGHTNESS + RANK).to(tl.int32)
    saturation = tl.load(p + SATURATION + RANK).to(tl.int32)
    hue = tl.load(p + HUE + RANK).to(tl.int32)
    for rank in range(begin, end):
        if rank == brightness:
            factor = tl.load(p + BRIGHTNESS).to(tl.float32)
            red = clamp_to_unit(factor * red)
            if planes == 3:
                green = clamp_to_unit(factor * green)
                blue = clamp_to_unit(factor * blue)
        if planes == 3:
            if rank == saturation:
                factor = tl.load(p + SATURATION).to(tl.float32)
                level = (1 - factor) * luma(red, green, blue)
                red = clamp_to_unit(factor * red + level)
                green = clamp_to_unit(factor * green + level)
                blue = clamp_to_unit(factor * blue + level)
            if rank == hue:
                shift = tl.load(p + HUE).to(tl.float32)
                red, green, blue = shift_hue(red, green, blue, shift)
    return red, green, blue


@triton.jit
@no_type_check
def shift_hue(red, green, blue, shift):
    """Shift hue by a fraction of the color circle, with equal saturation and value (HSV)."""
    high = tl.maximum(tl.maximum(red, green), blue)
    low = tl.minimum(tl.minimum(red, green), blue)
    spread = high - low
    safe = tl.maximum(spread, 1e-12)  # a gray pixel has no hue; its result does not depend on it
    hue = tl.where(high > green, red - green + 4 * safe, blue - red + 2 * safe)
    hue = tl.where(high > red, hue, green - blue)
    # In sixths of the circle, measured from cyan; a float32 near 1.5 * 2 ** 23 is an integer.
    hue = hue / safe + (6 * shift - 3)
    hue -= 6 * ((hue * (1 / 6) + 12582912.0) - 12582912.0)
    return (
        low + spread * clamp_to_unit(tl.abs(hue) - 1),
        high - spread * clamp_to_unit(tl.abs(hue + 1) - 1),
        high - spread * clamp_to_unit(tl.abs(hue - 1) - 1),
    )


@triton.jit
@no_type_check
def gray(red, green, blue, p):
    """Convert to three equal channels, if sampled for this image."""
    if tl.load(p + GRAY) > 0:
        red = luma(red, green, blue)
        green = red
        blue = red
    return red, green, blue


@triton.jit
@no_type_check
def luma(red, green, blue):
    """Return the luma of a color."""
    return RED * red + GREEN * green + BLUE * blue


@triton.jit
@no_type_check
def clamp_to_unit(x):
    """Clamp to [0, 1]."""
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
@no_type_check
def solarize_and_normalize(
    x,
    p,
    channel,
    channels: tl.constexpr,
    threshold: tl.constexpr,
    gains: tl.constexpr,
    shifts: tl.constexpr,
):
    """Solarize, if sampled for this image, then normalize each channel."""
    if tl.load(p + SOLARIZE) > 0:
        x = tl.where(x >= threshold, 1 - x, x)
    gain = tl.full((), gains[0], tl.float32)
    shift = tl.full((), shifts[0], tl.float32)
    for c in tl.static_range(1, channels):
        gain = tl.where(channel == c, gains[c], gain)
        shift = tl.where(channel == c, shifts[c], shift)
    return x * gain + shift
