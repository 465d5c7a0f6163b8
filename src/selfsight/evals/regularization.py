"""What keeps a large network from learning labels by heart: mixing, erasing, dropping, averaging.

Every draw is keyed by (seed, row of the global batch or image, step), so that training is the
same on any number of processes.
"""

import math
import re
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight import rng
from selfsight.backbones.resnet import Basic, Bottleneck
from selfsight.backbones.vit import Block
from selfsight.evals.classifier_settings import Regularization

Maps = Float[Tensor, "n c h w"]
AREA = (0.02, 1 / 3)  # of an erased box, as share of the image (arXiv:1708.04896)
ASPECT = 0.3
TRIES = 10


def mixed(
    x: Maps, targets: Float[Tensor, "n k"], strong: Regularization, *, seed: int, step: int
) -> tuple[Maps, Float[Tensor, "n k"]]:
    """Each image and its neighbor in the batch as one: mixup (arXiv:1710.09412) or CutMix.

    One share and one kind for the whole batch, as in timm; where both are on, each has half of the
    batches. Neighbors are rows 0 and 1, 2 and 3, ...; in a shuffled batch they are strangers.
    """
    if not (strong.mixup or strong.cutmix):
        return x, targets
    from scipy.special import betaincinv  # half a second, for those who mix

    kind, share, top, left = _host(seed, "mix", 4, step)
    cut = bool(strong.cutmix) and (not strong.mixup or kind < 0.5)
    spread = strong.cutmix if cut else strong.mixup
    kept = float(betaincinv(spread, spread, share))
    partner = neighbors(len(x), x.device)
    if cut:
        rows, columns = cut_box(x.shape[2], x.shape[3], kept, top, left)
        x = x.clone()
        x[:, :, rows, columns] = x[partner][:, :, rows, columns].clone()
        area = (rows.stop - rows.start) * (columns.stop - columns.start)
        kept = 1 - area / (x.shape[2] * x.shape[3])
    else:
        x = torch.lerp(x[partner], x, kept)
    return x, torch.lerp(targets[partner], targets, kept)


def neighbors(count: int, device: torch.device) -> Int64[Tensor, " n"]:
    """1 for 0, 0 for 1, 3 for 2, ...; the last of an odd number is its own."""
    partner = torch.arange(count, device=device) ^ 1
    return partner.clamp(max=count - 1)


def cut_box(height: int, width: int, kept: float, top: float, left: float) -> tuple[slice, slice]:
    """A box with 1 - kept of the area around a place drawn in [0, 1), cut at the border."""
    ratio = math.sqrt(1 - kept)
    sides = []
    for length, place in ((height, top), (width, left)):
        cut, center = int(length * ratio), int(length * place)
        first, last = max(0, center - cut // 2), min(length, center + (cut + 1) // 2)
        sides.append(slice(first, last))
    return sides[0], sides[1]


def erased(x: Maps, index: Int64[Tensor, " n"], share: float, *, seed: int, at: Tensor) -> Maps:
    """Normal noise in a random box of some images (random erasing, arXiv:1708.04896)."""
    if not share:
        return x
    draws = rng.uniform(rng.key(seed, "erase"), index, 1 + 4 * TRIES, at)
    rows = (draws[:, 0] < share).nonzero()[:, 0]
    if not len(rows):
        return x
    n, (c, h, w) = len(rows), x.shape[1:]
    area, aspect, top, left = draws[rows, 1:].view(n, 4, TRIES).unbind(1)
    area = (AREA[0] + (AREA[1] - AREA[0]) * area) * h * w
    aspect = (math.log(ASPECT) * (1 - 2 * aspect)).exp()
    tall, wide = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (tall < h) & (wide < w)
    first = fits.int().argmax(dim=1, keepdim=True)  # the first try that fits
    tall, wide = (s.gather(1, first) * fits.any(dim=1, keepdim=True) for s in (tall, wide))
    top = (top.gather(1, first) * (h - tall + 1)).floor()
    left = (left.gather(1, first) * (w - wide + 1)).floor()
    y = torch.arange(h, device=x.device)
    inside_y = (y >= top) & (y < top + tall)  # [n, H]
    z = torch.arange(w, device=x.device)
    inside_x = (z >= left) & (z < left + wide)
    hole = (inside_y[:, :, None] & inside_x[:, None, :])[:, None]
    noise = rng.normal(rng.key(seed, "erase", "noise"), index[rows], c * h * w, at[rows])
    x = x.clone()
    x[rows] = torch.where(hole, noise.view(n, c, h, w).to(x.dtype), x[rows])
    return x


def soft_targets(
    y: Int64[Tensor, " n"], num_classes: int, smoothing: float
) -> Float[Tensor, "n k"]:
    """One for the own class, some of it spread over all (label smoothing)."""
    return F.one_hot(y, num_classes).float() * (1 - smoothing) + smoothing / num_classes


class DropPath(nn.Module):
    """Leaves a branch out for some rows while training (stochastic depth, arXiv:1603.09382)."""

    def __init__(self, rate: float, number: int) -> None:
        super().__init__()
        self.rate, self.number = rate, number
        self.seed, self.step, self.rows = 0, 0, torch.zeros(0, dtype=torch.long)

    def forward(self, x: Float[Tensor, "n *rest"]) -> Float[Tensor, "n *rest"]:
        """Kept rows are scaled up, so that the mean stays."""
        if not (self.training and self.rate):
            return x
        key = rng.key(self.seed, "drop_path", self.number)
        kept = rng.uniform(key, self.rows, 1, self.step) >= self.rate
        scale = kept.to(x.dtype) / (1 - self.rate)
        return x * scale.view(-1, *[1] * (x.ndim - 1))


def add_drop_path(backbone: nn.Module, rate: float) -> list[DropPath]:
    """Put drop path on every branch beside a shortcut, rising with depth; none if there is none.

    Our ViTs and ResNets, and timm's networks, which name the place.
    """
    if not rate:
        return []
    blocks = [m for m in backbone.modules() if _branches(m)]
    added: list[DropPath] = []
    for number, block in enumerate(blocks):
        for name in _branches(block):
            drop = DropPath(rate * number / max(1, len(blocks) - 1), len(added))
            part = getattr(block, name)
            setattr(
                block, name, drop if name.startswith("drop_path") else nn.Sequential(part, drop)
            )
            added.append(drop)
    return added


def _branches(module: nn.Module) -> list[str]:
    if isinstance(module, Block):
        return ["attn", "mlp"]
    if isinstance(module, Basic):
        return ["bn2"]
    if isinstance(module, Bottleneck):
        return ["bn3"]
    return [n for n in ("drop_path", "drop_path1", "drop_path2") if hasattr(module, n)]


def place(drops: Iterable[DropPath], rows: Int64[Tensor, " n"], *, seed: int, step: int) -> None:
    """Tell drop path which rows of the global batch come next."""
    for drop in drops:
        drop.rows, drop.seed, drop.step = rows, seed, step


@torch.no_grad()
def follow(average: nn.Module, network: nn.Module, decay: float) -> None:
    """Move the average's weights toward the network's, and copy its running statistics."""
    torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), 1 - decay)
    for mine, theirs in zip(average.buffers(), network.buffers(), strict=True):
        mine.copy_(theirs)


def depths(backbone: nn.Module) -> dict[str, int]:
    """The layer of each parameter, from 0 at the pixels: timm's own grouping where it has one."""
    net: Any = getattr(backbone, "net", backbone)
    prefix = "" if net is backbone else "net."
    if hasattr(net, "group_matcher"):
        from timm.models import group_parameters  # importing timm takes a second

        found = group_parameters(net, net.group_matcher(coarse=False), reverse=True)
        return {prefix + name: int(layer) for name, layer in found.items()}
    places = {name: _place(name) for name, _ in backbone.named_parameters()}
    order = sorted(set(places.values()))
    return {name: order.index(where) for name, where in places.items()}


def _place(name: str) -> tuple[int, int, int]:
    """Stem, then the blocks in order, then what comes after them."""
    block = re.search(r"(?:layer|stages?\.|blocks\.|layers\.)(\d+)(?:\.(\d+))?", name)
    if block:
        return 1, int(block[1]), int(block[2] or 0)
    return (2, 0, 0) if re.match(r"(net\.)?(norm|ln|head|fc)", name) else (0, 0, 0)


def _host(seed: int, word: str, count: int, step: int) -> list[float]:
    """Numbers that a whole batch shares, on the host."""
    return rng.uniform(rng.key(seed, word), torch.zeros(1).long(), count, step)[0].tolist()
