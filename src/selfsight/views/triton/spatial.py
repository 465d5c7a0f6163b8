"""The pixels of views in three passes over memory, as Triton kernels.

Between the passes they lie as in channels_last: [view, image, row, column, channel]. Three
channels are a color and go through a program together (`planes` is 3); any others go one by one
(`planes` is 1). Sums are taken in a fixed order: the same call gives the same bits.
`no_type_check` keeps the type checks of tests from wrapping what Triton reads as source.
"""

from typing import no_type_check

import triton
import triton.language as tl

from selfsight.triton_helpers.resample import resampled
from selfsight.views.triton.color import finish, gray, jitter, luma, unit
from selfsight.views.triton.sampling import (
    CONTRAST,
    FIELDS,
    FLIP,
    HEIGHT,
    LEFT,
    NEVER,
    PLACE,
    SIGMA,
    TOP,
    WIDTH,
)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["flat", "starts", "sizes"])
@no_type_check
def crop(
    flat,
    starts,
    sizes,
    drawn,
    state,
    sums,
    n,
    size: tl.constexpr,
    channels: tl.constexpr,
    planes: tl.constexpr,
    views: tl.constexpr,
    cubic: tl.constexpr,
    gray_first: tl.constexpr,
    block: tl.constexpr,
):
    """First pass: resample, mirror, and take the steps of jitter that come before contrast.

    Each program also leaves the sum of its gray, for contrast.
    """
    parts: tl.constexpr = (size * size + block - 1) // block
    groups: tl.constexpr = channels // planes
    part, group, view, i = _whose(tl.program_id(0), parts, groups, views)
    own = (view * n + i).to(tl.int64)
    p = drawn + own * FIELDS
    pixel = part * block + tl.arange(0, block)
    inside = pixel < size * size
    # Beyond the view a program repeats the last pixel, and does not store it.
    at = tl.minimum(pixel, size * size - 1)
    to_x = tl.where(tl.load(p + FLIP) > 0, size - 1 - at % size, at % size)
    top, left = tl.load(p + TOP).to(tl.int32), tl.load(p + LEFT).to(tl.int32)
    height, width = tl.load(p + HEIGHT).to(tl.int32), tl.load(p + WIDTH).to(tl.int32)
    pitch = tl.load(sizes + 2 * i + 1).to(tl.int32)
    plane = tl.load(sizes + 2 * i) * pitch  # int64
    source = flat + tl.load(starts + i) + group * plane
    total, red, green, blue = resampled(
        source,
        pitch,
        plane,
        at // size,
        to_x,
        top,
        left,
        height,
        width,
        size,
        size,
        block,
        planes,
        cubic,
    )
    gain = 1 / (255 * total)
    red, green, blue = gain * red, gain * green, gain * blue
    if cubic:  # only the cubic overshoots
        red, green, blue = unit(red), unit(green), unit(blue)

    if gray_first:
        red, green, blue = gray(red, green, blue, p)
    contrast = tl.load(p + CONTRAST + PLACE).to(tl.int32)
    red, green, blue = jitter(red, green, blue, p, 0, contrast, planes)
    level = red
    if planes == 3:
        level = luma(red, green, blue)
    level = tl.sum(tl.where(inside, level, 0.0), axis=0)
    tl.store(sums + (own * groups + group) * parts + part, level)
    target = state + own * (size * size * channels) + pixel * channels + group
    _put(target, red, green, blue, inside, planes)


@triton.jit(do_not_specialize=["n"])
@no_type_check
def color(
    drawn,
    state,
    sums,
    rows_blurred,
    out,
    n,
    size: tl.constexpr,
    channels: tl.constexpr,
    planes: tl.constexpr,
    views: tl.constexpr,
    partials: tl.constexpr,
    gray_last: tl.constexpr,
    radius: tl.constexpr,
    threshold: tl.constexpr,
    gains: tl.constexpr,
    shifts: tl.constexpr,
    rows: tl.constexpr,
    block: tl.constexpr,
    padded: tl.constexpr,
):
    """Second pass: contrast and what follows it; then finish, or blur along the rows.

    A program holds whole rows, so that this blur needs no pixel of another program.
    """
    groups: tl.constexpr = channels // planes
    parts: tl.constexpr = (size + rows - 1) // rows
    part, group, view, i = _whose(tl.program_id(0), parts, groups, views)
    own = (view * n + i).to(tl.int64)
    p = drawn + own * FIELDS
    mine = state + own * (size * size * channels)
    pixel = part * rows * size + tl.arange(0, block)
    inside = (tl.arange(0, block) < rows * size) & (pixel < size * size)
    at = pixel * channels + group
    red = tl.load(mine + at, mask=inside, other=0.0).to(tl.float32)
    green = red
    blue = red
    if planes == 3:
        green = tl.load(mine + at + 1, mask=inside, other=0.0).to(tl.float32)
        blue = tl.load(mine + at + 2, mask=inside, other=0.0).to(tl.float32)

    contrast = tl.load(p + CONTRAST + PLACE).to(tl.int32)
    if contrast < NEVER:
        k = tl.arange(0, padded)
        partial = tl.load(sums + own * partials + k, mask=k < partials, other=0.0)
        factor = tl.load(p + CONTRAST).to(tl.float32)
        level = (1 - factor) * (tl.sum(partial, axis=0) / (groups * size * size))
        red = unit(factor * red + level)
        if planes == 3:
            green = unit(factor * green + level)
            blue = unit(factor * blue + level)
        red, green, blue = jitter(red, green, blue, p, contrast + 1, NEVER, planes)
    if gray_last:
        red, green, blue = gray(red, green, blue, p)

    finished = out + own * (size * size * channels)
    if radius > 0:
        sigma = tl.load(p + SIGMA).to(tl.float32)
        if sigma > 0:
            _put(mine + at, red, green, blue, inside, planes)
            tl.debug_barrier()  # from here on threads read what others of this program wrote
            blurred = rows_blurred + own * (size * size * channels)
            _blur_across(
                mine,
                blurred,
                part * rows,
                group,
                sigma,
                size,
                channels,
                planes,
                radius,
                rows,
                block,
            )
        else:
            red, green, blue = _finish(
                red, green, blue, p, group, channels, planes, threshold, gains, shifts
            )
            _put(finished + at, red, green, blue, inside, planes)
    else:
        red, green, blue = _finish(
            red, green, blue, p, group, channels, planes, threshold, gains, shifts
        )
        _put(finished + at, red, green, blue, inside, planes)


@triton.jit(do_not_specialize=["n"])
@no_type_check
def blur_down(
    drawn,
    rows_blurred,
    out,
    n,
    size: tl.constexpr,
    channels: tl.constexpr,
    views: tl.constexpr,
    radius: tl.constexpr,
    threshold: tl.constexpr,
    gains: tl.constexpr,
    shifts: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    """Third pass, for blurred images alone: blur along the columns and finish."""
    width: tl.constexpr = size * channels
    across: tl.constexpr = (width + columns - 1) // columns
    parts: tl.constexpr = across * ((size + rows - 1) // rows)
    part, _, view, i = _whose(tl.program_id(0), parts, 1, views)
    own = (view * n + i).to(tl.int64)
    p = drawn + own * FIELDS
    sigma = tl.load(p + SIGMA).to(tl.float32)
    if sigma > 0:
        mine = rows_blurred + own * (size * width)
        y = (part // across) * rows + tl.arange(0, rows)
        x = (part % across) * columns + tl.arange(0, columns)
        inside = (y < size)[:, None] & (x < width)[None, :]
        at = y[:, None] * width + x[None, :]
        mixed = tl.load(mine + at, mask=inside, other=0.0).to(tl.float32)
        reach, total = _gauss(sigma, radius)
        for t in range(1, reach + 1):
            above, below = _mirrored(y, t, 0, size - 1)
            above = above[:, None] * width + x[None, :]
            below = below[:, None] * width + x[None, :]
            pair = tl.load(mine + above, mask=inside, other=0.0).to(tl.float32)
            pair += tl.load(mine + below, mask=inside, other=0.0).to(tl.float32)
            mixed += _tap(t, sigma) * pair
        channel = (x % channels)[None, :]
        made = finish(mixed / total, p, channel, channels, threshold, gains, shifts)
        tl.store(out + own * (size * width) + at, made, mask=inside)


@triton.jit
@no_type_check
def _whose(program, parts: tl.constexpr, groups: tl.constexpr, views: tl.constexpr):
    # Views of an image side by side, so that its bytes are read from memory once.
    rest = program // parts
    return program % parts, rest % groups, (rest // groups) % views, rest // (groups * views)


@triton.jit
@no_type_check
def _gauss(sigma, radius: tl.constexpr):
    """How far the blur reaches in float32, and the sum of its taps."""
    reach = tl.minimum(tl.ceil(6.5 * sigma), radius).to(tl.int32)
    total = 1.0 + 0 * sigma
    for t in range(1, reach + 1):
        total += 2 * _tap(t, sigma)
    return reach, total


@triton.jit
@no_type_check
def _mirrored(at, step, start, end):
    """The places so far before and after `at`, turned round at the first and the last."""
    before, after = at - step, at + step
    return tl.maximum(before, 2 * start - before), tl.minimum(after, 2 * end - after)


@triton.jit
@no_type_check
def _tap(t, sigma):
    distance = t / sigma
    return tl.exp(-0.5 * distance * distance)


@triton.jit
@no_type_check
def _put(target, red, green, blue, inside, planes: tl.constexpr):
    tl.store(target, red, mask=inside)
    if planes == 3:
        tl.store(target + 1, green, mask=inside)
        tl.store(target + 2, blue, mask=inside)


@triton.jit
@no_type_check
def _finish(
    red,
    green,
    blue,
    p,
    group,
    channels: tl.constexpr,
    planes: tl.constexpr,
    threshold: tl.constexpr,
    gains: tl.constexpr,
    shifts: tl.constexpr,
):
    red = finish(red, p, group, channels, threshold, gains, shifts)
    if planes == 3:
        green = finish(green, p, group + 1, channels, threshold, gains, shifts)
        blue = finish(blue, p, group + 2, channels, threshold, gains, shifts)
    return red, green, blue


@triton.jit
@no_type_check
def _blur_across(
    source,
    target,
    top,
    group,
    sigma,
    size: tl.constexpr,
    channels: tl.constexpr,
    planes: tl.constexpr,
    radius: tl.constexpr,
    rows: tl.constexpr,
    block: tl.constexpr,
):
    width: tl.constexpr = size * planes
    reach, total = _gauss(sigma, radius)
    for begin in range(0, rows * width, block):
        flat = begin + tl.arange(0, block)
        inside = (flat < rows * width) & (top + flat // width < size)
        # Beyond the rows of this program a thread reads some of them again, and does not store.
        y = tl.minimum(top + tl.minimum(flat // width, rows - 1), size - 1)
        start = y * (size * channels) + group + flat % planes
        at = start + (flat % width) // planes * channels
        end = start + (size - 1) * channels
        mixed = tl.load(source + at).to(tl.float32)
        for t in range(1, reach + 1):
            left, right = _mirrored(at, t * channels, start, end)
            pair = tl.load(source + left).to(tl.float32) + tl.load(source + right).to(tl.float32)
            mixed += _tap(t, sigma) * pair
        tl.store(target + at, mixed / total, mask=inside)
