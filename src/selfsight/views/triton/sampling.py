"""Sample every parameter of every view of a batch in one Triton kernel.

Philox and the float64 arithmetic follow `views.sampling` step by step, so that both sample the
same boxes. `no_type_check` keeps the type checker of the tests from wrapping functions whose source
Triton reads.
"""

from itertools import accumulate
from typing import no_type_check

import triton
import triton.language as tl

from selfsight.triton_helpers.philox import philox, unit
from selfsight.views.sampling import COLUMNS, MAX_CROP_TRIES

# Where an image's parameters lie in its row of float64 numbers.
FIELDS = tl.constexpr(16)
TOP, LEFT, HEIGHT, WIDTH = (tl.constexpr(i) for i in range(4))
FLIP, GRAY, SIGMA, SOLARIZE = (tl.constexpr(i) for i in range(4, 8))
BRIGHTNESS, CONTRAST, SATURATION, HUE = (tl.constexpr(i) for i in range(8, 12))
PLACE = tl.constexpr(4)  # of a step of jitter in its order: so many fields after its factor
NEVER = tl.constexpr(4)  # the place of a step that is not taken

# Where a view's settings lie in its tuple: seven ranges and five chances.
SCALE, LOG_RATIO, RATIO, BLUR_SIGMA, JITTER = (tl.constexpr(2 * i) for i in range(5))
CHANCES = ("flip", "gray", "blur", "solarize", "jitter")
P_FLIP, P_GRAY, P_BLUR, P_SOLARIZE, P_JITTER = (tl.constexpr(i) for i in range(16, 21))
SETTINGS = tl.constexpr(21)

# Where the numbers of each name begin among those drawn.
_BEGIN = dict(zip(COLUMNS, accumulate(COLUMNS.values(), initial=0), strict=False))
U_AREA, U_RATIO, U_PLACE, U_FACTORS, U_ORDER, U_SIGMA = (
    tl.constexpr(_BEGIN[name]) for name in ("area", "ratio", "place", "factors", "order", "sigma")
)
U_FLIP, U_GRAY, U_BLUR, U_SOLARIZE, U_JITTER = (tl.constexpr(_BEGIN[name]) for name in CHANCES)
NUM_TRIES = tl.constexpr(MAX_CROP_TRIES)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["sizes", "index", "epoch"])
@no_type_check
def draw(
    drawn,
    sizes,
    index,
    epoch,
    words,
    n,
    settings: tl.constexpr,
    views: tl.constexpr,
    block: tl.constexpr,
):
    """Write FIELDS numbers for each view and image; a program has some images of one view."""
    view = tl.program_id(1)
    rows = tl.program_id(0) * block + tl.arange(0, block)
    valid = rows < n
    seed = _seed(words, 0)
    for v in tl.static_range(1, views):
        seed = tl.where(view == v, _seed(words, v), seed)
    row = tl.load(index + rows, mask=valid, other=0)
    moment = tl.load(epoch) + tl.zeros([block], tl.int64)
    size = sizes + 2 * rows
    height = tl.load(size, mask=valid, other=1).to(tl.float64)
    width = tl.load(size + 1, mask=valid, other=1).to(tl.float64)
    own = drawn + (view * n + rows).to(tl.int64) * FIELDS

    # torchvision's random resized crop: the first try that fits, else the center
    low, high = _range(settings, RATIO, view, views)
    shape = width / height
    tall = tl.where(shape < low, _round(width / low), height)
    wide = tl.where(shape > high, _round(height * high), width)
    found = rows < 0
    least, most = _range(settings, SCALE, view, views)
    low, high = _range(settings, LOG_RATIO, view, views)
    for attempt in tl.static_range(NUM_TRIES):
        share = least + (most - least) * _uniform(seed, row, moment, U_AREA + attempt)
        ratio = tl.exp(low + (high - low) * _uniform(seed, row, moment, U_RATIO + attempt))
        area = height * width * share
        w = _round(tl.sqrt(area * ratio))
        h = _round(tl.sqrt(area / ratio))
        fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
        tall = tl.where(fits & (found == 0), h, tall)
        wide = tl.where(fits & (found == 0), w, wide)
        found = found | fits
    down = _uniform(seed, row, moment, U_PLACE) * (height - tall + 1)
    right = _uniform(seed, row, moment, U_PLACE + 1) * (width - wide + 1)
    tl.store(own + TOP, tl.floor(tl.where(found, down, (height - tall) / 2)), mask=valid)
    tl.store(own + LEFT, tl.floor(tl.where(found, right, (width - wide) / 2)), mask=valid)
    tl.store(own + HEIGHT, tall, mask=valid)
    tl.store(own + WIDTH, wide, mask=valid)

    flip = _uniform(seed, row, moment, U_FLIP) < _setting(settings, P_FLIP, view, views)
    gray = _uniform(seed, row, moment, U_GRAY) < _setting(settings, P_GRAY, view, views)
    blur = _uniform(seed, row, moment, U_BLUR) < _setting(settings, P_BLUR, view, views)
    solarize = _uniform(seed, row, moment, U_SOLARIZE) < _setting(settings, P_SOLARIZE, view, views)
    jitter = _uniform(seed, row, moment, U_JITTER) < _setting(settings, P_JITTER, view, views)
    low, high = _range(settings, BLUR_SIGMA, view, views)
    sigma = low + (high - low) * _uniform(seed, row, moment, U_SIGMA)
    tl.store(own + FLIP, flip.to(tl.float64), mask=valid)
    tl.store(own + GRAY, gray.to(tl.float64), mask=valid)
    tl.store(own + SIGMA, tl.where(blur, sigma, 0.0), mask=valid)
    tl.store(own + SOLARIZE, solarize.to(tl.float64), mask=valid)

    turns = (
        _turn(seed, row, moment, 0, settings, view, views),
        _turn(seed, row, moment, 1, settings, view, views),
        _turn(seed, row, moment, 2, settings, view, views),
        _turn(seed, row, moment, 3, settings, view, views),
    )
    for step in tl.static_range(4):
        low, high = _range(settings, JITTER + 2 * step, view, views)
        factor = low + (high - low) * _uniform(seed, row, moment, U_FACTORS + step)
        place = tl.zeros([block], tl.float64)
        for other in tl.static_range(4):
            tie = (turns[other] == turns[step]) & (other < step)
            place += ((turns[other] < turns[step]) | tie).to(tl.float64)
        taken = jitter & (turns[step] < 1)
        tl.store(own + BRIGHTNESS + step, factor, mask=valid)
        tl.store(own + BRIGHTNESS + PLACE + step, tl.where(taken, place, NEVER), mask=valid)


@triton.jit
@no_type_check
def _seed(words, view: tl.constexpr):
    # The launch marks every word so that all are odd and of 64 bits.
    low = (words[2 * view] >> 1) & 0xFFFFFFFF
    high = (words[2 * view + 1] >> 1) & 0xFFFFFFFF
    return low | (high << 32)


@triton.jit
@no_type_check
def _uniform(seed, row, moment, column: tl.constexpr):
    a, b, c, d = philox(seed, row, tl.zeros_like(row) + column // 4, moment)
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
def _turn(seed, row, moment, step: tl.constexpr, settings: tl.constexpr, view, views: tl.constexpr):
    # The smaller, the sooner; 1 for a step whose range is empty.
    low, high = _range(settings, JITTER + 2 * step, view, views)
    return tl.where(low < high, _uniform(seed, row, moment, U_ORDER + step), 1.0)


@triton.jit
@no_type_check
def _range(settings: tl.constexpr, field: tl.constexpr, view, views: tl.constexpr):
    return _setting(settings, field, view, views), _setting(settings, field + 1, view, views)


@triton.jit
@no_type_check
def _setting(settings: tl.constexpr, field: tl.constexpr, view, views: tl.constexpr):
    value = tl.full((), settings[field], tl.float64)
    for v in tl.static_range(1, views):
        theirs = tl.full((), settings[v * SETTINGS + field], tl.float64)
        value = tl.where(view == v, theirs, value)
    return value


@triton.jit
@no_type_check
def _round(x):
    # To even, as torch does: float64 this large has no fractions left.
    return (x + 6755399441055744.0) - 6755399441055744.0
