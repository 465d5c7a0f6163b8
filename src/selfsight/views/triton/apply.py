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

from selfsight.ragged_batch import Ragged
from selfsight.rng import Key
from selfsight.views.sampling import jitter_ranges
from selfsight.views.spatial import blur_radius
from selfsight.views.triton import sampling, spatial
from selfsight.views.triton.can_fuse import list_steps
from selfsight.views.view_settings import View

# Per program: images in the sampling kernel, pixels in the crop and the color kernels.
SAMPLING_BLOCK, CROP_BLOCK, COLOR_BLOCK = 32, 512, 1024
# Tile of the column blur: pixels above each other are shared through the cache.
BLUR_ROWS, BLUR_COLUMNS = 16, 64


class _LaunchGroup(NamedTuple):
    """Settings that views must share to be computed by the same launches."""

    size: int
    cubic: bool
    gray_first: bool
    radius: int  # 0: never blurred
    threshold: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


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
    order = [i for group in groups.values() for i in group]  # views of one group are adjacent
    results: dict[int, Tensor] = {}
    # Kernels ignore strides, and images of equal size may share one expanded row of sizes.
    starts, sizes, index = (x.contiguous() for x in (images.starts, images.sizes, index))
    images = images._replace(starts=starts, sizes=sizes)
    with torch.cuda.device_of(images.flat):
        params = _sample_params(
            [views[i] for i in order], [keys[i] for i in order], images, index, epoch
        )
        params_per_group = params.split([len(group) for group in groups.values()])
        for (launch_group, group), group_params in zip(
            groups.items(), params_per_group, strict=True
        ):
            for i, pixels in zip(
                group, _passes(launch_group, images, group_params, dtype), strict=True
            ):
                results[i] = pixels.permute(0, 3, 1, 2)
    return [results[i] for i in range(len(views))]


def _launch_group(view: View) -> _LaunchGroup:
    steps = list_steps(view)
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


def _sample_params(
    views: Sequence[View],
    keys: Sequence[Key],
    images: Ragged,
    index: Int64[Tensor, " n"],
    epoch: int | Tensor,
) -> Float64[Tensor, "v n f"]:
    """Sample the parameters of all views in one launch."""
    n, device = len(index), index.device
    if isinstance(epoch, int):
        epoch = torch.full((), epoch, dtype=torch.int64, device=device)
    else:
        epoch = epoch.to(device, torch.int64, non_blocking=True)
    params = torch.empty(len(views), n, sampling.FIELDS.value, dtype=torch.float64, device=device)
    # Triton recompiles for an integer that is 1, has 32 bits, or is a multiple of 16: avoid these.
    key_words = tuple(1 << 40 | word << 1 | 1 for key in keys for word in key)
    sampling.sample_params_kernel[(triton.cdiv(n, SAMPLING_BLOCK), len(views))](
        params,
        images.sizes,
        index,
        epoch,
        key_words,
        n,
        settings=tuple(number for view in views for number in _settings(view)),
        views=len(views),
        block=SAMPLING_BLOCK,
        num_warps=1,
        enable_fp_fusion=False,  # torch rounds after each product, and boxes must be equal
    )
    return params


def _settings(view: View) -> tuple[float, ...]:
    """Return a view's settings in the order of `views.triton.sampling`."""
    scale, ratio = view.crop_ranges
    ranges = [scale, (math.log(ratio[0]), math.log(ratio[1])), ratio, view.blur_sigma]
    ranges += jitter_ranges(view.jitter)
    probabilities = [view.probability(name) for name in sampling.PROBABILITIES]
    return tuple(float(x) for x in (*(x for pair in ranges for x in pair), *probabilities))


def _passes(
    launch_group: _LaunchGroup, images: Ragged, params: Float64[Tensor, "v n f"], dtype: torch.dtype
) -> Float[Tensor, "v n s s c"]:
    """Compute the pixels of the views of one group, in two or three launches."""
    v, n, _ = params.shape
    size, channels, radius = launch_group.size, images.channels, launch_group.radius
    planes = 3 if channels == 3 else 1
    groups = channels // planes
    crop_tiles = triton.cdiv(size * size, CROP_BLOCK)
    working_dtype = torch.float16 if dtype in (torch.float16, torch.bfloat16) else torch.float32
    state = params.new_empty((v, n, size, size, channels), dtype=working_dtype)
    sums = params.new_empty((v, n, groups * crop_tiles), dtype=torch.float32)
    out = torch.empty_like(state, dtype=dtype)
    programs = v * n * groups
    spatial.crop_kernel[(programs * crop_tiles,)](
        images.flat,
        images.starts,
        images.sizes,
        params,
        state,
        sums,
        n,
        size=size,
        channels=channels,
        planes=planes,
        views=v,
        cubic=launch_group.cubic,
        gray_first=launch_group.gray_first,
        block=CROP_BLOCK,
        num_warps=4,
    )
    last = {
        "size": size,
        "channels": channels,
        "views": v,
        "radius": radius,
        "threshold": launch_group.threshold,
        "gains": _per_channel(tuple(1 / s for s in launch_group.std), channels),
        "shifts": _per_channel(
            tuple(-m / s for m, s in zip(launch_group.mean, launch_group.std, strict=True)),
            channels,
        ),
        "num_warps": 4,
    }
    rows = max(1, COLOR_BLOCK // size)
    blurred = torch.empty_like(state) if radius else state
    spatial.color_kernel[(programs * triton.cdiv(size, rows),)](
        params,
        state,
        sums,
        blurred,
        out,
        n,
        planes=planes,
        gray_last=channels == 3 and not launch_group.gray_first,
        rows=rows,
        block=triton.next_power_of_2(rows * size),
        partials=groups * crop_tiles,
        padded=triton.next_power_of_2(groups * crop_tiles),
        **last,
    )
    if radius:
        tiles = triton.cdiv(size, BLUR_ROWS) * triton.cdiv(size * channels, BLUR_COLUMNS)
        spatial.blur_columns_kernel[(v * n * tiles,)](
            params, blurred, out, n, rows=BLUR_ROWS, columns=BLUR_COLUMNS, **last
        )
    return out


def _per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    return values if len(values) == channels else values * channels
