"""Mixup (arXiv:1710.09412), CutMix (arXiv:1905.04899) and label smoothing of a batch.

As timm's Mixup with mode "batch": a batch has one mixing weight and is mixed by mixup or by CutMix.
timm samples both from numpy's global state and pairs row i with row n - 1 - i of the batch on this
process. Here they depend on (seed, step), and both rows of a pair are on one process, so that
training is equal on any number of processes and after a restart.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from selfsight import rng
from selfsight.evals.classifier_settings import Regularization


def mix_batch(
    x: Float[Tensor, "n c h w"],
    targets: Float[Tensor, "n k"],
    settings: Regularization,
    *,
    seed: int,
    step: int,
) -> tuple[Float[Tensor, "n c h w"], Float[Tensor, "n k"]]:
    """Mix each image and its target with those of its partner, by mixup or by CutMix.

    If both are on, each is applied to half of the batches.
    """
    if not (settings.mixup or settings.cutmix):
        return x, targets
    from scipy.special import betaincinv  # half a second to import

    key = rng.key(seed, "mix")
    choice, quantile, top, left = rng.uniform(key, torch.zeros(1).long(), 4, step)[0].tolist()
    use_cutmix = bool(settings.cutmix) and (not settings.mixup or choice < 0.5)
    alpha = settings.cutmix if use_cutmix else settings.mixup
    weight = float(betaincinv(alpha, alpha, quantile))
    partner = partner_rows(len(x), x.device)
    if use_cutmix:
        rows, columns = cutmix_box(x.shape[2], x.shape[3], weight, top, left)
        x = x.clone()
        x[:, :, rows, columns] = x[partner][:, :, rows, columns].clone()
        area = (rows.stop - rows.start) * (columns.stop - columns.start)
        weight = 1 - area / (x.shape[2] * x.shape[3])
    else:
        x = torch.lerp(x[partner], x, weight)
    return x, torch.lerp(targets[partner], targets, weight)


def partner_rows(count: int, device: torch.device) -> Int64[Tensor, " n"]:
    """Pair rows 0 and 1, 2 and 3, ...; the last row of an odd number is its own partner."""
    partner = torch.arange(count, device=device) ^ 1
    return partner.clamp(max=count - 1)


def cutmix_box(
    height: int, width: int, weight: float, top: float, left: float
) -> tuple[slice, slice]:
    """Rows and columns of a box with 1 - weight of the area, clipped at the border.

    `top` and `left` in [0, 1) place its center.
    """
    ratio = math.sqrt(1 - weight)
    sides = []
    for length, position in ((height, top), (width, left)):
        cut, center = int(length * ratio), int(length * position)
        first, last = max(0, center - cut // 2), min(length, center + (cut + 1) // 2)
        sides.append(slice(first, last))
    return sides[0], sides[1]


def smooth_labels(
    y: Int64[Tensor, " n"], num_classes: int, smoothing: float
) -> Float[Tensor, "n k"]:
    """One-hot targets with the share `smoothing` spread over all classes."""
    return F.one_hot(y, num_classes).float() * (1 - smoothing) + smoothing / num_classes
