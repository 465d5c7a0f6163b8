"""Color operations inside a Triton program, as `views.color` has them for batches.

A step is taken or not by whole programs: each has pixels of one image, whose parameters lie at
`p`. `no_type_check` keeps the type checks of tests from wrapping what Triton reads as source.
"""

from typing import no_type_check

import triton
import triton.language as tl

from selfsight.views.color import LUMA
from selfsight.views.triton.sampling import BRIGHTNESS, GRAY, HUE, PLACE, SATURATION, SOLARIZE

RED, GREEN, BLUE = (tl.constexpr(share) for share in LUMA)


@triton.jit
@no_type_check
def jitter(red, green, blue, p, begin, end, planes: tl.constexpr):
    """The steps of jitter but contrast whose places are in [begin, end)."""
    brightness = tl.load(p + BRIGHTNESS + PLACE).to(tl.int32)
    saturation = tl.load(p + SATURATION + PLACE).to(tl.int32)
    hue = tl.load(p + HUE + PLACE).to(tl.int32)
    for place in range(begin, end):
        if place == brightness:
            factor = tl.load(p + BRIGHTNESS).to(tl.float32)
            red = unit(factor * red)
            if planes == 3:
                green = unit(factor * green)
                blue = unit(factor * blue)
        if planes == 3:
            if place == saturation:
                factor = tl.load(p + SATURATION).to(tl.float32)
                level = (1 - factor) * luma(red, green, blue)
                red = unit(factor * red + level)
                green = unit(factor * green + level)
                blue = unit(factor * blue + level)
            if place == hue:
                turn = tl.load(p + HUE).to(tl.float32)
                red, green, blue = shift_hue(red, green, blue, turn)
    return red, green, blue


@triton.jit
@no_type_check
def shift_hue(red, green, blue, turn):
    """Hue moved round by a share of the circle, saturation and value (HSV) kept."""
    high = tl.maximum(tl.maximum(red, green), blue)
    low = tl.minimum(tl.minimum(red, green), blue)
    spread = high - low
    safe = tl.maximum(spread, 1e-12)  # a gray pixel has no hue, and needs none
    hue = tl.where(high > green, red - green + 4 * safe, blue - red + 2 * safe)
    hue = tl.where(high > red, hue, green - blue)
    # In sixths of the circle, measured from cyan; float32 of 1.5 * 2 ** 23 has no fractions left.
    hue = hue / safe + (6 * turn - 3)
    hue -= 6 * ((hue * (1 / 6) + 12582912.0) - 12582912.0)
    return (
        low + spread * unit(tl.abs(hue) - 1),
        high - spread * unit(tl.abs(hue + 1) - 1),
        high - spread * unit(tl.abs(hue - 1) - 1),
    )


@triton.jit
@no_type_check
def gray(red, green, blue, p):
    """Three equal channels where drawn."""
    if tl.load(p + GRAY) > 0:
        red = luma(red, green, blue)
        green = red
        blue = red
    return red, green, blue


@triton.jit
@no_type_check
def luma(red, green, blue):
    """The gray of a color."""
    return RED * red + GREEN * green + BLUE * blue


@triton.jit
@no_type_check
def unit(x):
    """Cut to [0, 1]."""
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
@no_type_check
def finish(
    x,
    p,
    channel,
    channels: tl.constexpr,
    threshold: tl.constexpr,
    gains: tl.constexpr,
    shifts: tl.constexpr,
):
    """Solarized where drawn, then normalized by the numbers of each channel."""
    if tl.load(p + SOLARIZE) > 0:
        x = tl.where(x >= threshold, 1 - x, x)
    gain = tl.full((), gains[0], tl.float32)
    shift = tl.full((), shifts[0], tl.float32)
    for c in tl.static_range(1, channels):
        gain = tl.where(channel == c, gains[c], gain)
        shift = tl.where(channel == c, shifts[c], shift)
    return x * gain + shift
