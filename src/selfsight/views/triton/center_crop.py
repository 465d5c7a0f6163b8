"""The resize and center crop of evaluation on a CUDA device, in one pass over the bytes.

`no_type_check` keeps the type checker of the tests from wrapping functions whose source Triton
reads.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from selfsight.ragged import Ragged
from selfsight.triton_helpers.resample import resample
from selfsight.views.spatial import center_crop_geometry
from selfsight.views.spec import EvalView
from selfsight.views.triton.color import clamp_to_unit
from selfsight.views.triton.spatial import store_pixels

BLOCK = 512  # pixels per program


def center_crop(images: Ragged, spec: EvalView) -> Float[Tensor, "n c s s"]:
    """Return what `views.spatial.center_crop` gives within rounding, in channels_last."""
    n, size, channels = len(images.starts), spec.size, images.channels
    planes = 3 if channels == 3 else 1
    resized, offset = center_crop_geometry(images.sizes, spec)
    out = torch.empty(n, size, size, channels, device=images.flat.device)
    blocks = triton.cdiv(size * size, BLOCK)
    with torch.cuda.device_of(images.flat):
        _center_crop[(n * (channels // planes) * blocks,)](
            images.flat,
            images.starts.contiguous(),
            images.sizes.contiguous(),
            resized.contiguous(),
            offset.contiguous(),
            out,
            size=size,
            channels=channels,
            planes=planes,
            cubic=spec.interpolation == "bicubic",
            block=BLOCK,
            num_warps=4,
        )
    return out.permute(0, 3, 1, 2)


@triton.jit(
    do_not_specialize_on_alignment=["flat", "starts", "sizes", "resized", "offset", "out"],
)
@no_type_check
def _center_crop(
    flat,
    starts,
    sizes,
    resized,
    offset,
    out,
    size: tl.constexpr,
    channels: tl.constexpr,
    planes: tl.constexpr,
    cubic: tl.constexpr,
    block: tl.constexpr,
):
    """Compute a block of pixels of one image: of its three colors, or of one other channel."""
    blocks: tl.constexpr = (size * size + block - 1) // block
    groups: tl.constexpr = channels // planes
    rest = tl.program_id(0) // blocks
    i, group = rest // groups, rest % groups
    pixel = (tl.program_id(0) % blocks) * block + tl.arange(0, block)
    inside = pixel < size * size
    at = tl.minimum(pixel, size * size - 1)  # beyond the crop: the last pixel again, not stored
    height, width = tl.load(sizes + 2 * i).to(tl.int32), tl.load(sizes + 2 * i + 1).to(tl.int32)
    plane = height.to(tl.int64) * width
    total, red, green, blue = resample(
        flat + tl.load(starts + i) + group * plane,
        width,
        plane,
        at // size + tl.load(offset + 2 * i).to(tl.int32),
        at % size + tl.load(offset + 2 * i + 1).to(tl.int32),
        0,
        0,
        height,
        width,
        tl.load(resized + 2 * i).to(tl.int32),
        tl.load(resized + 2 * i + 1).to(tl.int32),
        block,
        planes,
        cubic,
    )
    gain = 1 / (255 * total)
    target = out + i.to(tl.int64) * (size * size * channels) + pixel * channels + group
    red, green, blue = gain * red, gain * green, gain * blue
    if cubic:  # only the cubic overshoots
        red, green, blue = clamp_to_unit(red), clamp_to_unit(green), clamp_to_unit(blue)
    store_pixels(target, red, green, blue, inside, planes)
