"""Combinatorial patches (Ci et al. 2022, "Fast-MoCo", arXiv:2207.08220): divide, encode, combine.

N: images, m: patches of a view, n: patches in a combination, B: combinations (blocks). Patches
are numbered down the columns, as in the authors' code: for four of them top left, bottom left,
top right, bottom right. Stacks are patch-major and block-major.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple, Protocol, get_args, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from selfsight import dist
from selfsight.errors import UserError, suggest
from selfsight.nn.batch_norm import refuse_cut
from selfsight.nn.encoder import Encoder, Teacher

How = Literal["off", "divide", "sample", "encode_divide", "montage"]
Stage = Literal["input", "stage1", "stage2", "stage3", "final", "proj", "pred"]
Pairs = Literal["all", "adjacent"]

Maps = Float[Tensor, "n c h w"]
Parts = Float[Tensor, "m n c _ _"]
Vectors = Float[Tensor, "m n d"]


@dataclass(frozen=True, kw_only=True)
class Patches:
    """How a view becomes several predictions. Defaults: Fast-MoCo's, six pairs of four patches."""

    how: How = "divide"
    """Patches from a grid on the view (divide), from anywhere in it (sample), from the feature
    maps of the whole view (encode_divide) or of a montage of several images (montage)."""
    split: int = 2  # split x split patches
    combine: int = 2  # patches in a combination
    pairs: Pairs = "all"  # "adjacent": two pairs that cover the view, as in the stage ablation
    stage: Stage = "final"  # where patches become one: before "final" their maps are stitched

    def __post_init__(self) -> None:
        for name, kind in (("how", How), ("pairs", Pairs), ("stage", Stage)):
            value, known = getattr(self, name), get_args(kind)
            if value not in known:
                raise UserError(
                    f'patches.{name} is "{value}", which is not one of {", ".join(known)}.'
                    f"{suggest(value, known)}"
                )
        if self.split < 1 or not 1 <= self.combine <= self.split**2:
            raise UserError(
                f"patches.combine is {self.combine} of {self.split**2} patches (patches.split "
                f"{self.split}). Combine at least 1 patch and at most all."
            )
        if self.pairs == "adjacent" and (self.split, self.combine) != (2, 2):
            raise UserError(
                'patches.pairs is "adjacent", which means halves of a 2 x 2 grid. Use '
                'patches.split 2 and patches.combine 2, or patches.pairs "all".'
            )
        if self.stitched and (self.how, self.pairs) != ("divide", "adjacent"):
            raise UserError(
                f'patches.stage is "{self.stage}": patches are stitched together there, which only '
                'neighbors can be. Use patches.how "divide" with patches.pairs "adjacent", or '
                'patches.stage "final".'
            )

    @property
    def on(self) -> bool:
        """Whether views are cut up at all."""
        return self.how != "off"

    @property
    def stitched(self) -> bool:
        """Whether patches become one while they still are maps."""
        return self.stage in ("input", "stage1", "stage2", "stage3")

    @property
    def needs_stages(self) -> bool:
        """Whether the backbone is stopped half-way."""
        maps = self.how in ("encode_divide", "montage")
        return self.on and (maps or (self.stitched and self.stage != "input"))

    def groups(self, turn: int) -> list[tuple[int, ...]]:
        """The patches of each combination; adjacent pairs stand in even turns, lie in odd ones."""
        if self.pairs == "adjacent":
            return [(0, 1), (2, 3)] if turn % 2 == 0 else [(0, 2), (1, 3)]
        return list(combinations(range(self.split**2), self.combine))

    def refuse(self, view_sizes: tuple[int, ...]) -> None:
        """Raise a UserError for views that do not divide."""
        if not self.on:
            return
        for size in view_sizes:
            if size % self.split:
                fit = size // self.split * self.split
                raise UserError(
                    f"A view of {size} pixels does not divide into {self.split} x {self.split} "
                    f"patches. Use views of {fit or self.split} or {fit + self.split} pixels, or "
                    "another method.patches.split."
                )

    def check_backbone(self, backbone: nn.Module) -> None:
        """Refuse a network that cannot be stopped where patches are cut or stitched."""
        if self.needs_stages and not hasattr(backbone, "forward_to_stage"):
            raise UserError(
                f'patches.how "{self.how}" with patches.stage "{self.stage}" needs a backbone with '
                f"stages, and {type(backbone).__name__} has none. Use one of our ResNets, or "
                'patches.how "divide" with patches.stage "final".'
            )


OFF = Patches(how="off")
SIX_PAIRS = Patches()


@runtime_checkable
class Draws(Protocol):
    """Numbers that depend on the step and the image alone; a Moment gives them."""

    def uniform(self, name: str, count: int) -> Float64[Tensor, "n count"]:
        """A row for each image."""
        ...

    def permutation(self, name: str, n: int) -> Int64[Tensor, " n"]:
        """One order, the same on every process."""
        ...


class Sight(NamedTuple):
    """What a network makes of one view."""

    features: Float[Tensor, "n _"]
    target: Float[Tensor, "n d"]  # embedding of the whole view
    predictions: Float[Tensor, "*blocks n d"]


def see(
    patches: Patches,
    student: Encoder,
    predictor: nn.Module,
    x: Maps,
    at: Draws,
    *,
    turn: int = 0,
    teacher: Teacher | None = None,
) -> Sight:
    """The student's predictions from a view, and the whole view's embedding as a target.

    The target is the teacher's; without a teacher it is the student's, which patches make it see
    the view a second time for. Features are the student's own unless it saw patches only.
    """
    if not patches.on:
        h, z = student(x)
        target = z if teacher is None else teacher(x)[1]
        return Sight(h, target, predictor(z))
    predictions = predict(patches, student, predictor, x, at, turn=turn)
    if teacher is None:
        with torch.no_grad():
            h, target = student(x)
    else:
        h, target = teacher(x)
    return Sight(h, target, predictions)


def predict(
    patches: Patches,
    student: Encoder,
    predictor: nn.Module,
    x: Maps,
    at: Draws,
    *,
    turn: int = 0,
) -> Float[Tensor, "*blocks n d"]:
    """Predictions from each combination of a view's patches; heads see all blocks as one batch."""
    if not patches.on:
        return predictor(student(x)[1])
    refuse_cut(student, len(x))
    groups = patches.groups(turn)
    if patches.stitched:
        v = encode_stitched(patches, student.backbone, x, groups)
    else:
        v = encode(patches, student.backbone, x, at, turn)
    for stage, layer in (("final", student.projector), ("proj", predictor)):
        if patches.stage == stage:
            v = combine(v, groups)
        v = layer(v.flatten(0, 1)).unflatten(0, (len(v), -1))
    return combine(v, groups) if patches.stage == "pred" else v


def encode(patches: Patches, backbone: nn.Module, x: Maps, at: Draws, turn: int) -> Vectors:
    """One vector for each patch of each image."""
    if patches.how == "encode_divide":
        return pooled(backbone.forward_to_stage(x, 4), patches.split)  # type: ignore[operator]
    if patches.how == "montage":
        # Patch k of a montage is that of the image k places on in a random order of all.
        order = at.permutation("montage", len(x) * dist.world_size())
        orders = [order.roll(-k) for k in range(patches.split**2)]
        pieces = zip(divide(x, patches.split), orders, strict=True)
        mixed = [dist.local_rows(dist.gather(p)[o]) for p, o in pieces]
        maps = backbone.forward_to_stage(stitch(torch.stack(mixed), patches.split), 4)  # type: ignore[operator]
        found = zip(pooled(maps, patches.split), orders, strict=True)
        return torch.stack([dist.local_rows(dist.gather(v)[torch.argsort(o)]) for v, o in found])
    if patches.how == "sample":
        parts = sample(x, patches.split, at.uniform(f"patches {turn}", 2 * patches.split**2))
    else:
        parts = divide(x, patches.split)
    return backbone(parts.flatten(0, 1)).unflatten(0, (len(parts), -1))


def encode_stitched(
    patches: Patches, backbone: nn.Module, x: Maps, groups: list[tuple[int, ...]]
) -> Vectors:
    """One vector for each pair of neighbors, joined as images or as maps after a stage."""
    parts = divide(x, patches.split)
    stage = 0 if patches.stage == "input" else int(patches.stage[-1])
    if stage:
        parts = backbone.forward_to_stage(parts.flatten(0, 1), stage)  # type: ignore[operator]
        parts = parts.unflatten(0, (patches.split**2, -1))
    side = 2 if groups[0] == (0, 1) else 3  # one above the other, or side by side
    pairs = torch.cat([torch.cat([parts[i] for i in group], side) for group in groups])
    v = backbone.forward_from_stage(pairs, stage) if stage else backbone(pairs)  # type: ignore[operator]
    return v.unflatten(0, (len(groups), -1))


def divide(x: Maps, split: int) -> Parts:
    """The patches of a grid, down the columns."""
    rows = [part for column in x.chunk(split, 3) for part in column.chunk(split, 2)]
    return torch.stack(rows)


def stitch(parts: Parts, split: int) -> Maps:
    """The image that `divide` cut."""
    columns = [torch.cat(list(column), 2) for column in parts.split(split)]
    return torch.cat(columns, 3)


def combine(v: Vectors, groups: list[tuple[int, ...]]) -> Float[Tensor, "b n d"]:
    """The average of the vectors of each group."""
    return torch.stack([torch.stack([v[i] for i in group]).mean(0) for group in groups])


def pooled(maps: Maps, split: int) -> Vectors:
    """The mean over each patch of feature maps; patches of uneven maps share a row or column."""
    return F.adaptive_avg_pool2d(maps, split).permute(3, 2, 0, 1).flatten(0, 1)


def sample(x: Maps, split: int, draws: Float64[Tensor, "n _"]) -> Parts:
    """As many patches as the grid has, each anywhere in the view, by two draws for each."""
    size = x.shape[2] // split
    corner = (draws * (x.shape[2] - size + 1)).long()  # [N, 2m]
    pixels = corner[:, :, None] + torch.arange(size, device=x.device)  # [N, 2m, size]
    image = torch.arange(len(x), device=x.device)[:, None, None]
    parts = [
        x[image, :, rows[:, :, None], columns[:, None, :]]
        for rows, columns in zip(*pixels.transpose(0, 1).chunk(2), strict=True)
    ]
    return torch.stack(parts).permute(0, 1, 4, 2, 3)
