"""Apply views to a batch on a CUDA device, in few launches and few passes over memory.

One launch samples the parameters of all views. Views that share a `_LaunchGroup` then take three
passes: crop, color, blur. The last pass that an image needs also normalizes and casts. The host
never waits for the device, and launches depend on shapes alone, so that a CUDA graph can record
them. Results equal `views.apply.apply_views_reference` within rounding.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from selfsight.ragged import Ragged
from selfsight.rng import Key
from selfsight.views.sampling import jitter_ranges
from selfsight.views.spatial import blur_radius
from selfsight.views.spec import View
from selfsight.views.triton import sampling, spatial

# Images of a program that draws; pixels of one that crops, and of one that colors whole rows.
DRAWN, CROPPED, COLORED = 32, 512, 1024
# Rows and numbers across of a tile of the last pass: neighbors below each other meet in the cache.
DOWN, ACROSS = 16, 64


class _LaunchGroup(NamedTuple):
    """Settings that views must share to be computed by the same launches."""

    size: int
    cubic: bool
    gray_first: bool
    radius: int  # 0: never blurred
    threshold: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


def can_fuse(view: View) -> bool:
    """Whether the kernels know the view's operations and their order.

    Gray may stand on either side of the blur, since both are sums of pixels, and a flip anywhere.
    """
    steps = _steps(view)
    after_blur = steps[steps.index("blur") :] if "blur" in steps else []
    return (
        {"jitter", "gray", "blur", "solarize"}.issuperset(steps)
        and "solarize" not in steps[:-1]
        and "jitter" not in after_blur
    )


def apply_fused_views(
    views: Sequence[View],
    keys: Sequence[Key],
    images: Ragged,
    index: Int64[Tensor, " n"],
    epoch: int | Tensor,
    dtype: torch.dtype,
) -> list[Float[Tensor, "n c _ _"]]:
    """Apply views for which `can_fuse` is true; return channels_last batches of this dtype.

    Pixels between the passes are float16 for a result of 16 bits, else float32.
    """
    groups: dict[_LaunchGroup, list[int]] = {}
    for i, view in enumerate(views):
        groups.setdefault(_launch_group(view), []).append(i)
    order = [i for group in groups.values() for i in group]  # those of a group side by side
    made: dict[int, Tensor] = {}
    # Kernels read memory, not strides: images of one size may share one row of sizes.
    starts, sizes, index = (x.contiguous() for x in (images.starts, images.sizes, index))
    images = images._replace(starts=starts, sizes=sizes)
    with torch.cuda.device_of(images.flat):
        drawn = _draw([views[i] for i in order], [keys[i] for i in order], images, index, epoch)
        parts = drawn.split([len(group) for group in groups.values()])
        for (alike, group), mine in zip(groups.items(), parts, strict=True):
            for i, pixels in zip(group, _passes(alike, images, mine, dtype), strict=True):
                made[i] = pixels.permute(0, 3, 1, 2)
    return [made[i] for i in range(len(views))]


def _steps(view: View) -> list[str]:
    return [name for name in view.order if view.probability(name) > 0 and name != "flip"]


def _launch_group(view: View) -> _LaunchGroup:
    steps = _steps(view)
    radius = blur_radius(view.size, view.blur_sigma[1], view.blur_kernel)
    return _LaunchGroup(
        size=view.size,
        cubic=view.interpolation == "bicubic",
        gray_first="gray" in steps and "jitter" in steps[steps.index("gray") :],
        radius=radius if view.blur > 0 else 0,
        threshold=view.solarize_threshold,
        mean=view.mean,
        std=view.std,
    )


def _draw(
    views: Sequence[View],
    keys: Sequence[Key],
    images: Ragged,
    index: Int64[Tensor, " n"],
    epoch: int | Tensor,
) -> Float64[Tensor, "v n f"]:
    """The parameters of all views in one launch."""
    n, device = len(index), index.device
    if isinstance(epoch, int):
        epoch = torch.full((), epoch, dtype=torch.int64, device=device)
    else:
        epoch = epoch.to(device, torch.int64, non_blocking=True)
    drawn = torch.empty(len(views), n, sampling.FIELDS.value, dtype=torch.float64, device=device)
    # Triton compiles anew for an integer that is 1, or small, or a multiple of 16: these never are.
    words = tuple(1 << 40 | word << 1 | 1 for key in keys for word in key)
    sampling.draw[(triton.cdiv(n, DRAWN), len(views))](
        drawn,
        images.sizes,
        index,
        epoch,
        words,
        n,
        settings=tuple(number for view in views for number in _settings(view)),
        views=len(views),
        block=DRAWN,
        num_warps=1,
        enable_fp_fusion=False,  # torch rounds between a product and a sum; so do the boxes
    )
    return drawn


def _settings(view: View) -> tuple[float, ...]:
    """A view's numbers in the order of `fused_draw`."""
    low, high = view.ratio
    ranges = [view.scale, (math.log(low), math.log(high)), view.ratio, view.blur_sigma]
    ranges += jitter_ranges(view.jitter)
    chances = [view.probability(name) for name in sampling.CHANCES]
    return tuple(float(x) for x in (*(x for pair in ranges for x in pair), *chances))


def _passes(
    alike: _LaunchGroup, images: Ragged, drawn: Float64[Tensor, "v n f"], dtype: torch.dtype
) -> Float[Tensor, "v n s s c"]:
    """The pixels of views of one kind, in two or three launches."""
    v, n, _ = drawn.shape
    size, channels, radius = alike.size, images.channels, alike.radius
    planes = 3 if channels == 3 else 1
    groups = channels // planes
    parts = triton.cdiv(size * size, CROPPED)
    between = torch.float16 if dtype in (torch.float16, torch.bfloat16) else torch.float32
    state = drawn.new_empty((v, n, size, size, channels), dtype=between)
    sums = drawn.new_empty((v, n, groups * parts), dtype=torch.float32)
    out = torch.empty_like(state, dtype=dtype)
    programs = v * n * groups
    spatial.crop[(programs * parts,)](
        images.flat,
        images.starts,
        images.sizes,
        drawn,
        state,
        sums,
        n,
        size=size,
        channels=channels,
        planes=planes,
        views=v,
        cubic=alike.cubic,
        gray_first=alike.gray_first,
        block=CROPPED,
        num_warps=4,
    )
    last = {
        "size": size,
        "channels": channels,
        "views": v,
        "radius": radius,
        "threshold": alike.threshold,
        "gains": _each(tuple(1 / s for s in alike.std), channels),
        "shifts": _each(
            tuple(-m / s for m, s in zip(alike.mean, alike.std, strict=True)), channels
        ),
        "num_warps": 4,
    }
    rows = max(1, COLORED // size)
    blurred = torch.empty_like(state) if radius else state
    spatial.color[(programs * triton.cdiv(size, rows),)](
        drawn,
        state,
        sums,
        blurred,
        out,
        n,
        planes=planes,
        gray_last=channels == 3 and not alike.gray_first,
        rows=rows,
        block=triton.next_power_of_2(rows * size),
        partials=groups * parts,
        padded=triton.next_power_of_2(groups * parts),
        **last,
    )
    if radius:
        tiles = triton.cdiv(size, DOWN) * triton.cdiv(size * channels, ACROSS)
        spatial.blur_down[(v * n * tiles,)](
            drawn, blurred, out, n, rows=DOWN, columns=ACROSS, **last
        )
    return out


def _each(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    return values if len(values) == channels else values * channels
