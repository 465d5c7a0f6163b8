"""Color operations on images in [0, 1], with separate parameters for each image."""

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from selfsight.data.eval_transform import HIGH, LOW

# ITU-R 601 luma, rounded as in torchvision.
LUMA = (0.2989, 0.587, 0.114)
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def scale_pixels(
    pixels: Shaped[Tensor, "n c h w"], low: tuple[float, ...], high: tuple[float, ...]
) -> Float[Tensor, "n c h w"]:
    """Convert pixels to float32 in which `low` is 0 and `high` is 1."""
    x = pixels.float()
    if (low, high) == (LOW, HIGH):
        return x.div_(255)
    shift = constant(low, x)[:, None, None]
    return x.sub(shift).div_(constant(high, x)[:, None, None] - shift)


def jitter(
    x: Float[Tensor, "n c h w"],
    factors: Float[Tensor, "n 4"],
    order: Int64[Tensor, "n k"],
    *,
    hue: bool,
) -> Float[Tensor, "n c h w"]:
    """Apply brightness, contrast, saturation and, if `hue`, hue, in the order of each image.

    Hue costs most, so it is shifted once for all images: the steps that an image has before hue
    run first, the others afterwards, and the factor of a step that must not run yet is 1.
    """
    slots = order.shape[1]
    factors = factors.to(x.dtype)
    steps = factors.gather(1, order)
    if not hue:
        return _blend_steps(x, steps, order, range(slots))
    slot = torch.arange(slots, device=x.device)
    hue_slot = (order == HUE).int().argmax(dim=1, keepdim=True)
    x = _blend_steps(x, torch.where(slot < hue_slot, steps, 1.0), order, range(slots - 1))
    x = shift_hue(x, factors[:, HUE])
    return _blend_steps(x, torch.where(slot > hue_slot, steps, 1.0), order, range(1, slots))


def _blend_steps(x: Tensor, steps: Tensor, order: Tensor, slots: range) -> Tensor:
    """Blend with black (brightness), the mean luma (contrast) or each pixel's luma (saturation)."""
    luma = _luma(x)
    for slot in slots:
        factor, rest = steps[:, slot], 1 - steps[:, slot]
        offset = rest * (order[:, slot] == CONTRAST) * (x.mean(dim=(2, 3)) @ luma)
        matrix = _color_matrix(factor, rest * (order[:, slot] == SATURATION), luma)
        x = torch.bmm(matrix, x.flatten(2)).add_(offset[:, None, None]).clamp_(0, 1).view_as(x)
    return x


def shift_hue(x: Float[Tensor, "n 3 h w"], shift: Float[Tensor, " n"]) -> Float[Tensor, "n 3 h w"]:
    """Shift hue by a fraction of the color circle, with equal saturation and value (HSV)."""
    red, green, blue = x.unbind(1)
    high = torch.maximum(torch.maximum(red, green), blue)
    low = torch.minimum(torch.minimum(red, green), blue)
    spread = high - low
    safe = spread.clamp(min=1e-12)  # a gray pixel has no hue; its result does not depend on it
    # lerp by 0 or 1 selects exactly, and on a CPU many times faster than torch.where
    if_green, if_blue = (blue - red).add_(safe, alpha=2), (red - green).add_(safe, alpha=4)
    hue = torch.lerp(if_green, if_blue, (high - green).sign_())
    hue = torch.lerp(green - blue, hue, (high - red).sign_())
    # In sixths of the circle, measured from cyan: [-3, 3]
    hue = hue.div_(safe).add_((6 * shift - 3)[:, None, None])
    hue = hue.sub_((hue * (1 / 6)).round_(), alpha=6)
    return torch.stack(
        [
            torch.addcmul(low, spread, hue.abs().sub_(1).clamp_(0, 1)),
            torch.addcmul(high, spread, (hue + 1).abs_().sub_(1).clamp_(0, 1), value=-1),
            torch.addcmul(high, spread, (hue - 1).abs_().sub_(1).clamp_(0, 1), value=-1),
        ],
        dim=1,
    )


def gray(x: Float[Tensor, "n 3 h w"], selected: Bool[Tensor, " n"]) -> Float[Tensor, "n 3 h w"]:
    """Convert the selected images to three equal channels."""
    gray = selected.to(x.dtype)
    return torch.bmm(_color_matrix(1 - gray, gray, _luma(x)), x.flatten(2)).view_as(x)


def solarize(
    x: Float[Tensor, "n c h w"], selected: Bool[Tensor, " n"], threshold: float
) -> Float[Tensor, "n c h w"]:
    """Invert the selected images where they reach the threshold."""
    bound = torch.where(selected, threshold, float("inf")).to(x.dtype)
    return torch.lerp(x, 1 - x, x.clone().ge_(bound[:, None, None, None]))


def normalize(
    x: Float[Tensor, "n c h w"], mean: tuple[float, ...], std: tuple[float, ...]
) -> Float[Tensor, "n c h w"]:
    """Subtract the mean and divide by the deviation, per channel or with one number for all."""
    gain = constant(tuple(1 / s for s in std), x)[:, None, None]
    shift = constant(tuple(-m / s for m, s in zip(mean, std, strict=True)), x)[:, None, None]
    return torch.addcmul(shift, x, gain)


def constant(values: tuple[float, ...], like: Tensor) -> Float[Tensor, " _"]:
    """Return a vector filled on the device, since a copy from the host would wait."""
    return torch.stack([like.new_full((), v) for v in values])


def _luma(x: Tensor) -> Tensor:
    # With other than three channels, luma is their mean; only contrast uses it.
    return constant(LUMA if x.shape[1] == 3 else (1 / x.shape[1],) * x.shape[1], x)


def _color_matrix(color: Tensor, gray: Tensor, luma: Tensor) -> Tensor:
    """Return each image's matrix [N, C, C] for color * x + gray * luma(x)."""
    identity = torch.eye(len(luma), device=luma.device, dtype=luma.dtype)
    return color[:, None, None] * identity + gray[:, None, None] * luma
