"""Sample every parameter of every view of a batch in one Triton kernel.

Philox and the float64 arithmetic follow `views.sampling` step by step, so that both sample the
same boxes. `no_type_check` keeps the type checker of the tests from wrapping functions whose source
Triton reads.
"""

from itertools import accumulate
from typing import no_type_check

import triton
import triton.language as tl

from selfsight.triton_kernels.philox import philox, unit
from selfsight.views.sampling import COLUMNS, MAX_CROP_TRIES

# Fields of an image's parameters, in its row of float64 numbers.
FIELDS = tl.constexpr(16)
TOP, LEFT, HEIGHT, WIDTH = (tl.constexpr(i) for i in range(4))
FLIP, GRAY, SIGMA, SOLARIZE = (tl.constexpr(i) for i in range(4, 8))
BRIGHTNESS, CONTRAST, SATURATION, HUE = (tl.constexpr(i) for i in range(8, 12))
RANK = tl.constexpr(4)  # offset from a jitter factor to its rank in the order of jitter
NOT_APPLIED = tl.constexpr(4)  # rank of a jitter step that is not applied

# Fields of a view's settings, in its tuple: eight ranges and five probabilities.
SCALE, LOG_RATIO, RATIO, BLUR_SIGMA, JITTER = (tl.constexpr(2 * i) for i in range(5))
PROBABILITIES = ("flip", "gray", "blur", "solarize", "jitter")
P_FLIP, P_GRAY, P_BLUR, P_SOLARIZE, P_JITTER = (tl.constexpr(i) for i in range(16, 21))
SETTINGS = tl.constexpr(21)

# First column of each parameter among the uniform numbers.
_BEGIN = dict(zip(COLUMNS, accumulate(COLUMNS.values(), initial=0), strict=False))
U_AREA, U_RATIO, U_POSITION, U_FACTORS, U_ORDER, U_SIGMA = (
    tl.constexpr(_BEGIN[name]) for name in ("area", "ratio", "place", "factors", "order", "sigma")
)
U_FLIP, U_GRAY, U_BLUR, U_SOLARIZE, U_JITTER = (
    tl.constexpr(_BEGIN[name]) for name in PROBABILITIES
)
NUM_TRIES = tl.constexpr(MAX_CROP_TRIES)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["sizes", "index", "epoch"])
@no_type_check
def sample_params_kernel(
    view_params,
    sizes,
    index,
    epoch,
    key_words,
    n,
    settings: tl.constexpr,
    views: tl.constexpr,
    block: tl.constexpr,
):
    """Write FIELDS numbers per view and image; a program handles `block` images of one view."""
    view = tl.program_id(1)
    image = tl.program_id(0) * block + tl.arange(0, block)
    valid = image < n
    seed = _seed(key_words, 0)
    for v in tl.static_range(1, views):
        seed = tl.where(view == v, _seed(key_words, v), seed)
    image_index = tl.load(index + image, mask=valid, other=0)
    epoch_value = tl.load(epoch) + tl.zeros([block], tl.int64)
    size = sizes + 2 * image
    height = tl.load(size, mask=valid, other=1).to(tl.float64)
    width = tl.load(size + 1, mask=valid, other=1).to(tl.float64)
    target = view_params + (view * n + image).to(tl.int64) * FIELDS

    # torchvision's random resized crop: the first try that fits, else the center
    low, high = _range(settings, RATIO, view, views)
    shape = width / height
    box_height = tl.where(shape < low, _round(width / low), height)
    box_width = tl.where(shape > high, _round(height * high), width)
    any_fits = image < 0
    low_scale, high_scale = _range(settings, SCALE, view, views)
    low, high = _range(settings, LOG_RATIO, view, views)
    for attempt in tl.static_range(NUM_TRIES):
        share = low_scale + (high_scale - low_scale) * _uniform(
            seed, image_index, epoch_value, U_AREA + attempt
        )
        ratio = tl.exp(
            low + (high - low) * _uniform(seed, image_index, epoch_value, U_RATIO + attempt)
        )
        area = height * width * share
        w = _round(tl.sqrt(area * ratio))
        h = _round(tl.sqrt(area / ratio))
        fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
        box_height = tl.where(fits & (any_fits == 0), h, box_height)
        box_width = tl.where(fits & (any_fits == 0), w, box_width)
        any_fits = any_fits | fits
    top = _uniform(seed, image_index, epoch_value, U_POSITION) * (height - box_height + 1)
    left = _uniform(seed, image_index, epoch_value, U_POSITION + 1) * (width - box_width + 1)
    tl.store(target + TOP, tl.floor(tl.where(any_fits, top, (height - box_height) / 2)), mask=valid)
    tl.store(target + LEFT, tl.floor(tl.where(any_fits, left, (width - box_width) / 2)), mask=valid)
    tl.store(target + HEIGHT, box_height, mask=valid)
    tl.store(target + WIDTH, box_width, mask=valid)

    flip = _uniform(seed, image_index, epoch_value, U_FLIP) < _setting(
        settings, P_FLIP, view, views
    )
    gray = _uniform(seed, image_index, epoch_value, U_GRAY) < _setting(
        settings, P_GRAY, view, views
    )
    blur = _uniform(seed, image_index, epoch_value, U_BLUR) < _setting(
        settings, P_BLUR, view, views
    )
    solarize = _uniform(seed, image_index, epoch_value, U_SOLARIZE) < _setting(
        settings, P_SOLARIZE, view, views
    )
    jitter = _uniform(seed, image_index, epoch_value, U_JITTER) < _setting(
        settings, P_JITTER, view, views
    )
    low, high = _range(settings, BLUR_SIGMA, view, views)
    sigma = low + (high - low) * _uniform(seed, image_index, epoch_value, U_SIGMA)
    tl.store(target + FLIP, flip.to(tl.float64), mask=valid)
    tl.store(target + GRAY, gray.to(tl.float64), mask=valid)
    tl.store(target + SIGMA, tl.where(blur, sigma, 0.0), mask=valid)
    tl.store(target + SOLARIZE, solarize.to(tl.float64), mask=valid)

    sort_keys = (
        _sort_key(seed, image_index, epoch_value, 0, settings, view, views),
        _sort_key(seed, image_index, epoch_value, 1, settings, view, views),
        _sort_key(seed, image_index, epoch_value, 2, settings, view, views),
        _sort_key(seed, image_index, epoch_value, 3, settings, view, views),
    )
    for step in tl.static_range(4):
        low, high = _range(settings, JITTER + 2 * step, view, views)
        factor = low + (high - low) * _uniform(seed, image_index, epoch_value, U_FACTORS + step)
        rank = tl.zeros([block], tl.float64)
        for other in tl.static_range(4):
            tie = (sort_keys[other] == sort_keys[step]) & (other < step)
            rank += ((sort_keys[other] < sort_keys[step]) | tie).to(tl.float64)
        applied = jitter & (sort_keys[step] < 1)
        tl.store(target + BRIGHTNESS + step, factor, mask=valid)
        tl.store(
            target + BRIGHTNESS + RANK + step, tl.where(applied, rank, NOT_APPLIED), mask=valid
        )


@triton.jit
@no_type_check
def _seed(key_words, view: tl.constexpr):
    # Undo the encoding that prevents Triton from specializing on the words (`_sample_params`).
    low = (key_words[2 * view] >> 1) & 0xFFFFFFFF
    high = (key_words[2 * view + 1] >> 1) & 0xFFFFFFFF
    return low | (high << 32)


@triton.jit
@no_type_check
def _uniform(seed, image_index, epoch_value, column: tl.constexpr):
    a, b, c, d = philox(seed, image_index, tl.zeros_like(image_index) + column // 4, epoch_value)
    if column % 4 == 0:
        word = a
    elif column % 4 == 1:
        word = b
    elif column % 4 == 2:
        word = c
    else:
        word = d
    return unit(word)


@triton.jit
@no_type_check
def _sort_key(
    seed,
    image_index,
    epoch_value,
    step: tl.constexpr,
    settings: tl.constexpr,
    view,
    views: tl.constexpr,
):
    # Steps run in ascending order; 1 marks a step whose range is empty.
    low, high = _range(settings, JITTER + 2 * step, view, views)
    return tl.where(low < high, _uniform(seed, image_index, epoch_value, U_ORDER + step), 1.0)


@triton.jit
@no_type_check
def _range(settings: tl.constexpr, field: tl.constexpr, view, views: tl.constexpr):
    return _setting(settings, field, view, views), _setting(settings, field + 1, view, views)


@triton.jit
@no_type_check
def _setting(settings: tl.constexpr, field: tl.constexpr, view, views: tl.constexpr):
    value = tl.full((), settings[field], tl.float64)
    for v in tl.static_range(1, views):
        other = tl.full((), settings[v * SETTINGS + field], tl.float64)
        value = tl.where(view == v, other, value)
    return value


@triton.jit
@no_type_check
def _round(x):
    # Round half to even, as torch does: a float64 this large has no fractional bits.
    return (x + 6755399441055744.0) - 6755399441055744.0
