"""Color operations on images in [0, 1], each with its own parameter for every image."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

# ITU-R 601 as torchvision rounds it.
LUMA = (0.2989, 0.587, 0.114)
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def jitter(
    x: Float[Tensor, "n c h w"],
    factors: Float[Tensor, "n 4"],
    order: Int64[Tensor, "n k"],
    *,
    hue: bool,
) -> Float[Tensor, "n c h w"]:
    """Brightness, contrast, saturation and, if `hue`, hue in each image's own order.

    Turning hue costs most, so it is done once, for all: before it each image takes the steps that
    come before its own hue, after it the others; a step out of its turn changes nothing.
    """
    slots = order.shape[1]
    factors = factors.to(x.dtype)
    steps = factors.gather(1, order)
    if not hue:
        return _blends(x, steps, order, range(slots))
    slot = torch.arange(slots, device=x.device)
    own = (order == HUE).int().argmax(dim=1, keepdim=True)
    x = _blends(x, torch.where(slot < own, steps, 1.0), order, range(slots - 1))
    x = shift_hue(x, factors[:, HUE])
    return _blends(x, torch.where(slot > own, steps, 1.0), order, range(1, slots))


def _blends(x: Tensor, steps: Tensor, order: Tensor, slots: range) -> Tensor:
    """Brightness blends with black, contrast with the mean gray, saturation with each gray."""
    luma = _luma(x)
    for slot in slots:
        own, rest = steps[:, slot], 1 - steps[:, slot]
        level = rest * (order[:, slot] == CONTRAST) * (x.mean(dim=(2, 3)) @ luma)
        matrix = _color_matrix(own, rest * (order[:, slot] == SATURATION), luma)
        x = torch.bmm(matrix, x.flatten(2)).add_(level[:, None, None]).clamp_(0, 1).view_as(x)
    return x


def shift_hue(x: Float[Tensor, "n 3 h w"], turn: Float[Tensor, " n"]) -> Float[Tensor, "n 3 h w"]:
    """Hue moved round by a share of the circle, saturation and value (HSV) kept."""
    red, green, blue = x.unbind(1)
    high = torch.maximum(torch.maximum(red, green), blue)
    low = torch.minimum(torch.minimum(red, green), blue)
    spread = high - low
    safe = spread.clamp(min=1e-12)  # a gray pixel has no hue, and needs none
    # lerp by 0 or 1 chooses exactly, and on a CPU many times faster than torch.where
    if_green, if_blue = (blue - red).add_(safe, alpha=2), (red - green).add_(safe, alpha=4)
    hue = torch.lerp(if_green, if_blue, (high - green).sign_())
    hue = torch.lerp(green - blue, hue, (high - red).sign_())
    # In sixths of the circle, measured from cyan: [-3, 3]
    hue = hue.div_(safe).add_((6 * turn - 3)[:, None, None])
    hue = hue.sub_((hue * (1 / 6)).round_(), alpha=6)
    return torch.stack(
        [
            torch.addcmul(low, spread, hue.abs().sub_(1).clamp_(0, 1)),
            torch.addcmul(high, spread, (hue + 1).abs_().sub_(1).clamp_(0, 1), value=-1),
            torch.addcmul(high, spread, (hue - 1).abs_().sub_(1).clamp_(0, 1), value=-1),
        ],
        dim=1,
    )


def gray(x: Float[Tensor, "n 3 h w"], chosen: Bool[Tensor, " n"]) -> Float[Tensor, "n 3 h w"]:
    """The chosen images without color, in three equal channels."""
    share = chosen.to(x.dtype)
    return torch.bmm(_color_matrix(1 - share, share, _luma(x)), x.flatten(2)).view_as(x)


def solarize(
    x: Float[Tensor, "n c h w"], chosen: Bool[Tensor, " n"], threshold: float
) -> Float[Tensor, "n c h w"]:
    """The chosen images inverted wherever they reach the threshold."""
    bound = torch.where(chosen, threshold, float("inf")).to(x.dtype)
    return torch.lerp(x, 1 - x, x.clone().ge_(bound[:, None, None, None]))


def normalize(
    x: Float[Tensor, "n c h w"], mean: tuple[float, ...], std: tuple[float, ...]
) -> Float[Tensor, "n c h w"]:
    """Each channel less its mean, divided by its deviation; one number serves all channels."""
    gain = constant(tuple(1 / s for s in std), x)[:, None, None]
    shift = constant(tuple(-m / s for m, s in zip(mean, std, strict=True)), x)[:, None, None]
    return torch.addcmul(shift, x, gain)


def constant(values: tuple[float, ...], like: Tensor) -> Float[Tensor, " _"]:
    """A vector filled on the device: a copy from the host would make the host wait."""
    return torch.stack([like.new_full((), v) for v in values])


def _luma(x: Tensor) -> Tensor:
    # What is gray in other than three channels matters to contrast alone: their mean.
    return constant(LUMA if x.shape[1] == 3 else (1 / x.shape[1],) * x.shape[1], x)


def _color_matrix(own: Tensor, gray: Tensor, luma: Tensor) -> Tensor:
    """For each image the matrix that gives own * color + gray * its gray, [N, C, C]."""
    same = torch.eye(len(luma), device=luma.device, dtype=luma.dtype)
    return own[:, None, None] * same + gray[:, None, None] * luma
