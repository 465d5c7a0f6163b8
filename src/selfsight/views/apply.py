"""Views of a batch of images, on the device where the pixels lie.

Every image's view depends on (seed, epoch, image, view number) alone: neither its neighbors in
the batch, nor the padding round it, nor the device changes it beyond float32 rounding. Nothing
waits for the device and no control flow depends on a value.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from selfsight.ragged import Ragged
from selfsight.rng import Key, has_triton
from selfsight.views import color, spatial
from selfsight.views.crop import center_crop, crop
from selfsight.views.sampling import Draws, draw, view_keys
from selfsight.views.spec import Center, View, check_channels

# A mirrored image goes through these as its mirror image does.
MIRROR_ALIKE = {"jitter", "gray", "blur", "solarize", "sobel"}


def views_of(
    views: Sequence[View],
    images: Ragged,
    index: Int64[Tensor, " n"],
    *,
    seed: int,
    epoch: int | Tensor,
    dtype: torch.dtype = torch.float32,
) -> list[Float[Tensor, "n c _ _"]]:
    """One batch per view in channels_last, on a CUDA device in few passes over memory.

    There the kernels of `views.fused` make the views whose operations they know; `make_views` makes
    the others, and all of them elsewhere. Both give the same but for rounding.
    """
    keys = view_keys(seed, len(views))
    known: list[int] = []
    made: dict[int, Tensor] = {}
    if images.flat.device.type == "cuda" and has_triton():
        from selfsight.views.triton.apply import (  # needs Triton, which CPUs lack
            can_fuse,
            fused_views,
        )

        known = [i for i, view in enumerate(views) if can_fuse(view)]
        for i in known:
            check_channels(views[i], images.channels)
        if known:
            mine = [views[i] for i in known], [keys[i] for i in known]
            made = dict(zip(known, fused_views(*mine, images, index, epoch, dtype), strict=True))
    rest = [i for i in range(len(views)) if i not in known]
    if rest:
        theirs = [views[i] for i in rest], [keys[i] for i in rest]
        others = views_from_keys(*theirs, images.padded(), images.sizes, index, epoch)
        for i, x in zip(rest, others, strict=True):
            made[i] = x.to(dtype, memory_format=torch.channels_last)
    return [made[i] for i in range(len(views))]


def make_views(
    views: Sequence[View],
    pixels: UInt8[Tensor, "n c h w"],
    sizes: Int64[Tensor, "n 2"],
    index: Int64[Tensor, " n"],
    *,
    seed: int,
    epoch: int | Tensor,
) -> list[Float[Tensor, "n c _ _"]]:
    """One batch per view, from padded pixels and each image's own (height, width)."""
    return views_from_keys(views, view_keys(seed, len(views)), pixels, sizes, index, epoch)


def views_from_keys(
    views: Sequence[View],
    keys: Sequence[Key],
    pixels: UInt8[Tensor, "n c h w"],
    sizes: Int64[Tensor, "n 2"],
    index: Int64[Tensor, " n"],
    epoch: int | Tensor,
) -> list[Float[Tensor, "n c _ _"]]:
    """`make_views` once the seed is hashed: all in tensors, so that it can be compiled whole."""
    channels = pixels.shape[1]
    for view in views:
        check_channels(view, channels)
    made = []
    # Autocast would round the products; these are the data, not the network.
    with torch.no_grad(), torch.autocast(pixels.device.type, enabled=False):
        x = pixels.float().div_(255)
        for view, key in zip(views, keys, strict=True):
            draws = draw(view, sizes, index, key=key, epoch=epoch, channels=channels)
            made.append(apply_view(view, x, draws))
    return made


def center(
    pixels: UInt8[Tensor, "n c h w"], sizes: Int64[Tensor, "n 2"], spec: Center
) -> Float[Tensor, "n c s s"]:
    """The evaluation view, from padded pixels and each image's own (height, width)."""
    check_channels(spec, pixels.shape[1])
    with torch.no_grad(), torch.autocast(pixels.device.type, enabled=False):
        x = center_crop(pixels.float().div_(255), sizes, spec)
        return color.normalize(x, spec.mean, spec.std)


def apply_view(
    view: View, x: Float[Tensor, "n c h w"], draws: Draws
) -> Float[Tensor, "n c {view.size} {view.size}"]:
    """The drawn view of images in [0, 1]: crop, the operations in the view's order, normalize."""
    steps = [name for name in view.order if view.probability(name) > 0]
    # Turning the crop's weights round costs nothing, where it gives what flipping later would.
    early = "flip" in steps and MIRROR_ALIKE.issuperset(steps[: steps.index("flip")])
    x = crop(
        x,
        draws.box,
        view.size,
        interpolation=view.interpolation,
        flip=draws.flip if early else None,
    )
    for name in steps:
        if name != "flip" or not early:
            x = _operate(name, view, x, draws)
    return color.normalize(x, view.mean, view.std)


def _operate(name: str, view: View, x: Tensor, draws: Draws) -> Tensor:
    match name:
        case "flip":
            return spatial.flip(x, draws.flip)
        case "jitter":
            return color.jitter(x, draws.factors, draws.order, hue=view.jitter[3] > 0)
        case "gray":
            return color.gray(x, draws.gray)
        case "blur":
            radius = spatial.blur_radius(view.size, view.blur_sigma[1], view.blur_kernel)
            return spatial.blur(x, draws.sigma, radius)
        case "solarize":
            return color.solarize(x, draws.solarize, view.solarize_threshold)
        case "rotate":
            return spatial.rotate(x, draws.turns)
        case "cutout":
            return spatial.cutout(x, draws.hole, view.mean)
        case "sobel":
            return spatial.sobel(x, draws.sobel)
        case "noise":
            assert draws.grain is not None
            return spatial.noise(x, draws.grain)
    raise AssertionError(name)
