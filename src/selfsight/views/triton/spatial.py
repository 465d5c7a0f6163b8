"""Triton kernels that compute the pixels of views in three passes: crop, color, blur columns.

Between the passes pixels are in channels_last: [view, image, row, column, channel]. A program
handles three channels at once (`planes` is 3) if there are three, else one (`planes` is 1). Sums
have a fixed order: the same call gives the same bits. `no_type_check` keeps the type checker of the
tests from wrapping functions whose source Triton reads.
"""

from typing import no_type_check

import triton
import triton.language as tl

from selfsight.triton_kernels.resample import resample
from selfsight.views.triton.color import clamp_to_unit, gray, jitter, luma, solarize_and_normalize
from selfsight.views.triton.sampling import (
    CONTRAST,
    FIELDS,
    FLIP,
    HEIGHT,
    LEFT,
    NOT_APPLIED,
    RANK,
    SIGMA,
    TOP,
    WIDTH,
)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["flat", "starts", "sizes"])
@no_type_check
def crop_kernel(
    flat,
    starts,
    sizes,
    view_params,
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
    """First pass: resample, flip, and apply the steps of jitter that come before contrast.

    Each program also stores the sum of its luma, from which contrast takes the mean.
    """
    tiles: tl.constexpr = (size * size + block - 1) // block
    groups: tl.constexpr = channels // planes
    tile, group, view, i = _locate_program(tl.program_id(0), tiles, groups, views)
    item = (view * n + i).to(tl.int64)
    p = view_params + item * FIELDS
    pixel = tile * block + tl.arange(0, block)
    inside = pixel < size * size
    # Threads beyond the last pixel repeat it and do not store it.
    at = tl.minimum(pixel, size * size - 1)
    out_x = tl.where(tl.load(p + FLIP) > 0, size - 1 - at % size, at % size)
    top, left = tl.load(p + TOP).to(tl.int32), tl.load(p + LEFT).to(tl.int32)
    height, width = tl.load(p + HEIGHT).to(tl.int32), tl.load(p + WIDTH).to(tl.int32)
    pitch = tl.load(sizes + 2 * i + 1).to(tl.int32)
    plane = tl.load(sizes + 2 * i) * pitch  # int64
    source = flat + tl.load(starts + i) + group * plane
    total, red, green, blue = resample(
        source,
        pitch,
        plane,
        at // size,
        out_x,
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
        red, green, blue = clamp_to_unit(red), clamp_to_unit(green), clamp_to_unit(blue)

    if gray_first:
        red, green, blue = gray(red, green, blue, p)
    contrast = tl.load(p + CONTRAST + RANK).to(tl.int32)
    red, green, blue = jitter(red, green, blue, p, 0, contrast, planes)
    level = red
    if planes == 3:
        level = luma(red, green, blue)
    level = tl.sum(tl.where(inside, level, 0.0), axis=0)
    tl.store(sums + (item * groups + group) * tiles + tile, level)
    target = state + item * (size * size * channels) + pixel * channels + group
    store_pixels(target, red, green, blue, inside, planes)


@triton.jit(do_not_specialize=["n"])
@no_type_check
def color_kernel(
    view_params,
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
    """Second pass: contrast and the steps after it; then normalize, or blur along the rows.

    A program handles complete rows, so that this blur needs no pixel of another program.
    """
    groups: tl.constexpr = channels // planes
    tiles: tl.constexpr = (size + rows - 1) // rows
    tile, group, view, i = _locate_program(tl.program_id(0), tiles, groups, views)
    item = (view * n + i).to(tl.int64)
    p = view_params + item * FIELDS
    pixels = state + item * (size * size * channels)
    pixel = tile * rows * size + tl.arange(0, block)
    inside = (tl.arange(0, block) < rows * size) & (pixel < size * size)
    at = pixel * channels + group
    red = tl.load(pixels + at, mask=inside, other=0.0).to(tl.float32)
    green = red
    blue = red
    if planes == 3:
        green = tl.load(pixels + at + 1, mask=inside, other=0.0).to(tl.float32)
        blue = tl.load(pixels + at + 2, mask=inside, other=0.0).to(tl.float32)

    contrast = tl.load(p + CONTRAST + RANK).to(tl.int32)
    if contrast < NOT_APPLIED:
        k = tl.arange(0, padded)
        partial = tl.load(sums + item * partials + k, mask=k < partials, other=0.0)
        factor = tl.load(p + CONTRAST).to(tl.float32)
        level = (1 - factor) * (tl.sum(partial, axis=0) / (groups * size * size))
        red = clamp_to_unit(factor * red + level)
        if planes == 3:
            green = clamp_to_unit(factor * green + level)
            blue = clamp_to_unit(factor * blue + level)
        red, green, blue = jitter(red, green, blue, p, contrast + 1, NOT_APPLIED, planes)
    if gray_last:
        red, green, blue = gray(red, green, blue, p)

    target = out + item * (size * size * channels)
    if radius > 0:
        sigma = tl.load(p + SIGMA).to(tl.float32)
        if sigma > 0:
            store_pixels(pixels + at, red, green, blue, inside, planes)
            tl.debug_barrier()  # threads read below what other threads of this program wrote above
            blurred = rows_blurred + item * (size * size * channels)
            _blur_rows(
                pixels,
                blurred,
                tile * rows,
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
            red, green, blue = _solarize_and_normalize(
                red, green, blue, p, group, channels, planes, threshold, gains, shifts
            )
            store_pixels(target + at, red, green, blue, inside, planes)
    else:
        red, green, blue = _solarize_and_normalize(
            red, green, blue, p, group, channels, planes, threshold, gains, shifts
        )
        store_pixels(target + at, red, green, blue, inside, planes)


@triton.jit(do_not_specialize=["n"])
@no_type_check
def blur_columns_kernel(
    view_params,
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
    """Third pass, only for blurred images: blur along the columns and normalize."""
    width: tl.constexpr = size * channels
    tiles_x: tl.constexpr = (width + columns - 1) // columns
    tiles: tl.constexpr = tiles_x * ((size + rows - 1) // rows)
    tile, _, view, i = _locate_program(tl.program_id(0), tiles, 1, views)
    item = (view * n + i).to(tl.int64)
    p = view_params + item * FIELDS
    sigma = tl.load(p + SIGMA).to(tl.float32)
    if sigma > 0:
        pixels = rows_blurred + item * (size * width)
        y = (tile // tiles_x) * rows + tl.arange(0, rows)
        x = (tile % tiles_x) * columns + tl.arange(0, columns)
        inside = (y < size)[:, None] & (x < width)[None, :]
        at = y[:, None] * width + x[None, :]
        blurred_sum = tl.load(pixels + at, mask=inside, other=0.0).to(tl.float32)
        reach, total = _gaussian_taps(sigma, radius)
        for t in range(1, reach + 1):
            above, below = _reflect(y, t, 0, size - 1)
            above = above[:, None] * width + x[None, :]
            below = below[:, None] * width + x[None, :]
            pair = tl.load(pixels + above, mask=inside, other=0.0).to(tl.float32)
            pair += tl.load(pixels + below, mask=inside, other=0.0).to(tl.float32)
            blurred_sum += _gaussian_weight(t, sigma) * pair
        channel = (x % channels)[None, :]
        result = solarize_and_normalize(
            blurred_sum / total, p, channel, channels, threshold, gains, shifts
        )
        tl.store(out + item * (size * width) + at, result, mask=inside)


@triton.jit
@no_type_check
def _locate_program(program, tiles: tl.constexpr, groups: tl.constexpr, views: tl.constexpr):
    """Return the tile, channel group, view and image of a program."""
    # Views of one image are adjacent, so that its bytes are read from memory once.
    rest = program // tiles
    return program % tiles, rest % groups, (rest // groups) % views, rest // (groups * views)


@triton.jit
@no_type_check
def _gaussian_taps(sigma, radius: tl.constexpr):
    """Return how many pixels the blur reaches in float32, and the sum of its weights."""
    reach = tl.minimum(tl.ceil(6.5 * sigma), radius).to(tl.int32)
    total = 1.0 + 0 * sigma
    for t in range(1, reach + 1):
        total += 2 * _gaussian_weight(t, sigma)
    return reach, total


@triton.jit
@no_type_check
def _reflect(at, step, start, end):
    """Return the positions `step` before and after `at`, reflected at start and end."""
    before, after = at - step, at + step
    return tl.maximum(before, 2 * start - before), tl.minimum(after, 2 * end - after)


@triton.jit
@no_type_check
def _gaussian_weight(t, sigma):
    distance = t / sigma
    return tl.exp(-0.5 * distance * distance)


@triton.jit
@no_type_check
def store_pixels(target, red, green, blue, inside, planes: tl.constexpr):
    """Store the three colors of pixels in channels_last, or one other channel."""
    tl.store(target, red, mask=inside)
    if planes == 3:
        tl.store(target + 1, green, mask=inside)
        tl.store(target + 2, blue, mask=inside)


@triton.jit
@no_type_check
def _solarize_and_normalize(
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
    red = solarize_and_normalize(red, p, group, channels, threshold, gains, shifts)
    if planes == 3:
        green = solarize_and_normalize(green, p, group + 1, channels, threshold, gains, shifts)
        blue = solarize_and_normalize(blue, p, group + 2, channels, threshold, gains, shifts)
    return red, green, blue


@triton.jit
@no_type_check
def _blur_rows(
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
    reach, total = _gaussian_taps(sigma, radius)
    for begin in range(0, rows * width, block):
        flat = begin + tl.arange(0, block)
        inside = (flat < rows * width) & (top + flat // width < size)
        # Threads beyond the rows of this program repeat some of them and do not store.
        y = tl.minimum(top + tl.minimum(flat // width, rows - 1), size - 1)
        start = y * (size * channels) + group + flat % planes
        at = start + (flat % width) // planes * channels
        end = start + (size - 1) * channels
        blurred_sum = tl.load(source + at).to(tl.float32)
        for t in range(1, reach + 1):
            left, right = _reflect(at, t * channels, start, end)
            pair = tl.load(source + left).to(tl.float32) + tl.load(source + right).to(tl.float32)
            blurred_sum += _gaussian_weight(t, sigma) * pair
        tl.store(target + at, blurred_sum / total, mask=inside)
