"""Apply views to a batch of images, on the device that holds the pixels.

An image's view depends only on (seed, epoch, image index, view number): the other images of the
batch, the padding and the device change it by no more than float32 rounding. The host never waits
for the device, and no control flow depends on a tensor's value.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from selfsight.ragged_batch import Ragged
from selfsight.rng import Key, has_triton
from selfsight.views import color, spatial
from selfsight.views.sampling import ViewParams, sample_view_params, view_keys
from selfsight.views.view_settings import View, check_channels

# Flipping before or after these operations gives the same result.
COMMUTES_WITH_FLIP = {"jitter", "gray", "blur", "solarize", "sobel"}


def apply_views(
    views: Sequence[View],
    images: Ragged,
    index: Int64[Tensor, " n"],
    *,
    seed: int,
    epoch: int | Tensor,
    dtype: torch.dtype = torch.float32,
) -> list[Float[Tensor, "n c _ _"]]:
    """Return one batch per view, in channels_last.

    On a CUDA device, `views.triton` computes every view of bytes that `can_fuse` accepts. The
    reference implementation computes the others (those with a rotation, cutout, Sobel filter,
    noise, second or shared crop, and those of uint16 and float32 images), and all views on other
    devices. Both agree within rounding.
    """
    keys = view_keys(seed, len(views))
    fused: list[int] = []
    results: dict[int, Tensor] = {}
    is_bytes = images.flat.dtype == torch.uint8
    if images.flat.device.type == "cuda" and is_bytes and has_triton():
        from selfsight.views.triton.apply import apply_fused_views
        from selfsight.views.triton.can_fuse import can_fuse

        fused = [i for i, view in enumerate(views) if can_fuse(view)]
        for i in fused:
            check_channels(views[i], images.channels)
        if fused:
            specs = [views[i] for i in fused], [keys[i] for i in fused]
            results.update(
                zip(fused, apply_fused_views(*specs, images, index, epoch, dtype), strict=True)
            )
    unfused = [i for i in range(len(views)) if i not in fused]
    if unfused:
        specs = [views[i] for i in unfused], [keys[i] for i in unfused]
        batches = apply_views_with_keys(
            *specs, images.padded(), images.sizes, index, epoch, first_key=keys[0]
        )
        for i, x in zip(unfused, batches, strict=True):
            results[i] = x.to(dtype, memory_format=torch.channels_last)
    return [results[i] for i in range(len(views))]


def apply_views_reference(
    views: Sequence[View],
    pixels: Shaped[Tensor, "n c h w"],
    sizes: Int64[Tensor, "n 2"],
    index: Int64[Tensor, " n"],
    *,
    seed: int,
    epoch: int | Tensor,
) -> list[Float[Tensor, "n c _ _"]]:
    """Return one batch per view, from padded pixels and the (height, width) of each image."""
    return apply_views_with_keys(views, view_keys(seed, len(views)), pixels, sizes, index, epoch)


def apply_views_with_keys(
    views: Sequence[View],
    keys: Sequence[Key],
    pixels: Shaped[Tensor, "n c h w"],
    sizes: Int64[Tensor, "n 2"],
    index: Int64[Tensor, " n"],
    epoch: int | Tensor,
    first_key: Key | None = None,
) -> list[Float[Tensor, "n c _ _"]]:
    """Do the work of `apply_views_reference` once the seed is hashed; compiles as one graph.

    `first_key` is the key of the first view, if that is not among these.
    """
    channels = pixels.shape[1]
    for view in views:
        check_channels(view, channels)
    batches = []
    # Autocast would round the products, but these are data, not activations.
    with torch.no_grad(), torch.autocast(pixels.device.type, enabled=False):
        scaled: dict[object, Tensor] = {}
        for view, key in zip(views, keys, strict=True):
            ends = (view.low, view.high)
            if ends not in scaled:
                scaled[ends] = color.scale_pixels(pixels, *ends)
            params = sample_view_params(
                view,
                sizes,
                index,
                key=key,
                epoch=epoch,
                channels=channels,
                first_key=first_key or keys[0],
            )
            batches.append(apply_view(view, scaled[ends], params))
    return batches


def apply_view(
    view: View, x: Float[Tensor, "n c h w"], params: ViewParams
) -> Float[Tensor, "n c {view.size} {view.size}"]:
    """Crop images in [0, 1], apply the operations in the view's order, normalize."""
    steps = [name for name in view.order if view.probability(name) > 0]
    # Flipping the crop's weights is free; do it where the result equals a later flip.
    flip_in_crop = "flip" in steps and COMMUTES_WITH_FLIP.issuperset(steps[: steps.index("flip")])
    x = spatial.crop(
        x,
        params.crop_box,
        view.size,
        interpolation=view.interpolation,
        flip=params.flip if flip_in_crop else None,
    )
    for name in steps:
        if name != "flip" or not flip_in_crop:
            x = apply_operation(name, view, x, params)
    return color.normalize(x, view.mean, view.std)


def apply_operation(name: str, view: View, x: Tensor, params: ViewParams) -> Tensor:
    """Apply one operation of the view, with each image's parameters."""
    match name:
        case "flip":
            return spatial.flip(x, params.flip)
        case "jitter":
            return color.jitter(
                x, params.jitter_factors, params.jitter_order, hue=view.jitter[3] > 0
            )
        case "gray":
            return color.gray(x, params.gray)
        case "blur":
            radius = spatial.blur_radius(view.size, view.blur_sigma[1], view.blur_kernel)
            return spatial.blur(x, params.blur_sigma, radius)
        case "solarize":
            return color.solarize(x, params.solarize, view.solarize_threshold)
        case "rotate":
            return spatial.rotate(x, params.quarter_turns)
        case "cutout":
            return spatial.cutout(x, params.cutout_box, view.mean)
        case "sobel":
            return spatial.sobel(x, params.sobel)
        case "noise":
            assert params.noise is not None
            return spatial.noise(x, params.noise)
        case "second_crop":
            assert params.second_crop_box is not None
            box = params.second_crop_box
            return spatial.crop(x, box, view.size, interpolation=view.interpolation)
    raise AssertionError(name)
