"""Combinatorial patches (Ci et al. 2022, "Fast-MoCo", arXiv:2207.08220): divide, encode, combine.

N: images, m: patches of a view, n: patches in a combination, B: combinations (blocks). Patches
are numbered down the columns, as in the authors' code: for four of them top left, bottom left,
top right, bottom right. Stacks are patch-major and block-major.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from selfsight import dist
from selfsight.check_settings import FEW, check_settings
from selfsight.errors import UserError
from selfsight.nn.batch_norm import check_whole_groups
from selfsight.nn.chunked_encoder import in_chunks
from selfsight.nn.encoder import Backbone, Encoder
from selfsight.rng import RandomDraws

How = Literal["off", "divide", "sample", "encode_divide", "montage"]
Stage = Literal["input", "stage1", "stage2", "stage3", "final", "proj", "pred"]
Pairs = Literal["all", "adjacent"]

Maps = Float[Tensor, "n c h w"]
PatchMaps = Float[Tensor, "m n c _ _"]
Vectors = Float[Tensor, "m n d"]

MAX_COMBINATIONS = 1000


@dataclass(frozen=True, kw_only=True)
class Patches:
    """How a view is divided and combined. Defaults: Fast-MoCo's, six pairs of four patches."""

    how: How = "divide"
    """Patches from a grid on the view (divide), from random positions in it (sample), from the
    feature maps of the whole view (encode_divide) or of a montage of several images (montage)."""
    split: int = 2  # split x split patches
    combine: int = 2  # patches in a combination
    pairs: Pairs = "all"  # "adjacent": two pairs that cover the view, as in the stage ablation
    stage: Stage = "final"  # where patches are combined; before "final" their maps are stitched

    def __post_init__(self) -> None:
        check_settings(self, "patches.", {"split": FEW, "combine": FEW})
        if self.combine > self.split**2:
            raise UserError(
                f"patches.combine is {self.combine} of {self.split**2} patches (patches.split "
                f"{self.split}). Combine at least 1 patch and at most all."
            )
        count = math.comb(self.split**2, self.combine)
        if count > MAX_COMBINATIONS:
            raise UserError(
                f"patches.combine is {self.combine} of {self.split**2} patches (patches.split "
                f"{self.split}): that gives {count:.3g} combinations, and at most "
                f"{MAX_COMBINATIONS} can be computed. Lower patches.split or patches.combine."
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
        """Whether views are divided at all."""
        return self.how != "off"

    @property
    def stitched(self) -> bool:
        """Whether patches are combined as maps, by stitching."""
        return self.stage in ("input", "stage1", "stage2", "stage3")

    @property
    def needs_stages(self) -> bool:
        """Whether the backbone must give the maps of a stage."""
        maps = self.how in ("encode_divide", "montage")
        return self.on and (maps or (self.stitched and self.stage != "input"))

    def combinations(self, view: int) -> list[tuple[int, ...]]:
        """The patches of each combination; adjacent pairs are columns in even views, else rows."""
        if self.pairs == "adjacent":
            return [(0, 1), (2, 3)] if view % 2 == 0 else [(0, 2), (1, 3)]
        return list(itertools.combinations(range(self.split**2), self.combine))

    def validate_views(self, view_sizes: tuple[int, ...]) -> None:
        """Raise a UserError for views that do not divide into patches."""
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

    def validate_stage(self) -> None:
        """Raise a UserError for patches that are combined after the predictor."""
        if self.on and self.stage == "pred":
            raise UserError(
                'patches.stage is "pred", which combines predictions: only fast_moco does that. '
                'Use patches.stage "final" or "proj".'
            )

    def validate_backbone(self, backbone: nn.Module) -> None:
        """Raise a UserError for a network without stages where maps must be cut or stitched."""
        if self.needs_stages and not hasattr(backbone, "forward_to_stage"):
            raise UserError(
                f'patches.how "{self.how}" with patches.stage "{self.stage}" needs a backbone with '
                f"stages, and {type(backbone).__name__} has none. Use one of our ResNets, or "
                'patches.how "divide" with patches.stage "final".'
            )


OFF = Patches(how="off")
SIX_PAIRS = Patches()


class PatchStudent(Encoder):
    """An encoder that can also encode a view from combinations of its patches."""

    def __init__(self, backbone: Backbone, projector: nn.Module, patches: Patches) -> None:
        super().__init__(backbone, projector)
        patches.validate_backbone(backbone)
        self.patches = patches

    def forward(
        self, x: Maps, at: RandomDraws | None = None, *, view: int = 0
    ) -> tuple[Float[Tensor, "n _"], Float[Tensor, "*blocks n d"]]:
        """Features, and one embedding for each combination of patches.

        With patches off, or without `at`, features and embedding of the whole view.
        """
        if at is None or not self.patches.on:
            h = self.features(x)
            return h, self.projector(h)
        v = self.encode_patches(x, at, view=view)  # [m, N, D], stitched pairs [B, N, D]
        z = self.projector(self.combine(v, "final", view=view))
        return v.mean(0), self.combine(z, "proj", view=view)

    def whole_views(self) -> Encoder:
        """An encoder of whole views with the same weights."""
        return Encoder(self.backbone, self.projector)

    def combine(self, v: Vectors, stage: Stage, *, view: int) -> Float[Tensor, "b n d"]:
        """Average the vectors of each combination, if patches are combined at this stage."""
        if self.patches.stage != stage:
            return v
        return average_groups(v, self.patches.combinations(view))

    def encode_patches(self, x: Maps, at: RandomDraws, *, view: int) -> Vectors:
        """One vector for each patch of each image, or for each stitched pair."""
        check_whole_groups(self, len(x))
        split = self.patches.split
        if self.patches.stitched:
            return self._encode_stitched(divide(x, split), view)
        if self.patches.how == "encode_divide":
            return pool_patches(self._forward_to_stage(x, 4), split)
        if self.patches.how == "montage":
            return self._encode_montages(x, at)
        if self.patches.how == "sample":
            corners = at.uniform(f"patches {view}", x, 2 * split**2)
            patches = sample_patches(x, split, corners)
        else:
            patches = divide(x, split)
        return self.features(patches.flatten(0, 1)).unflatten(0, (len(patches), -1))

    def _encode_stitched(self, patches: PatchMaps, view: int) -> Float[Tensor, "b n d"]:
        """One vector for each pair of neighbors, stitched as images or as maps after a stage."""
        groups = self.patches.combinations(view)
        stage = 0 if self.patches.stage == "input" else int(self.patches.stage[-1])
        if stage:
            maps = self._forward_to_stage(patches.flatten(0, 1), stage)
            patches = maps.unflatten(0, (self.patches.split**2, -1))
        side = 2 if groups[0] == (0, 1) else 3  # one above the other, or side by side
        pairs = torch.cat([torch.cat([patches[i] for i in group], side) for group in groups])
        if not stage:
            return self.features(pairs).unflatten(0, (len(groups), -1))
        run = self.backbone.forward_from_stage
        v = in_chunks(run, self.backbone, self.chunk_size, pairs, stage)  # type: ignore[arg-type]
        return v.unflatten(0, (len(groups), -1))

    def _encode_montages(self, x: Maps, at: RandomDraws) -> Vectors:
        """Patch vectors from montages: patch k is of the image k places on in a random order."""
        split = self.patches.split
        order = at.permutation("montage", len(x) * dist.world_size(), x.device)
        orders = [order.roll(-k) for k in range(split**2)]
        patches = zip(divide(x, split), orders, strict=True)
        montages = stitch(
            torch.stack([dist.local_rows(dist.gather(p)[o]) for p, o in patches]), split
        )
        pooled = pool_patches(self._forward_to_stage(montages, 4), split)
        vectors = zip(pooled, orders, strict=True)
        return torch.stack([dist.local_rows(dist.gather(v)[torch.argsort(o)]) for v, o in vectors])

    def _forward_to_stage(self, x: Maps, stage: int) -> Float[Tensor, "n _ _ _"]:
        run = self.backbone.forward_to_stage
        return in_chunks(run, self.backbone, self.chunk_size, x, stage)  # type: ignore[arg-type]


def divide(x: Maps, split: int) -> PatchMaps:
    """The patches of a grid, down the columns."""
    return torch.stack([p for column in x.chunk(split, 3) for p in column.chunk(split, 2)])


def stitch(patches: PatchMaps, split: int) -> Maps:
    """The inverse of `divide`."""
    columns = [torch.cat(list(column), 2) for column in patches.split(split)]
    return torch.cat(columns, 3)


def average_groups(v: Vectors, groups: list[tuple[int, ...]]) -> Float[Tensor, "b n d"]:
    """The average of the vectors of each group."""
    return torch.stack([torch.stack([v[i] for i in group]).mean(0) for group in groups])


def pool_patches(maps: Maps, split: int) -> Vectors:
    """The mean over each patch of feature maps; patches of uneven maps share a row or column.

    As adaptive pooling, whose gradient is not deterministic on a GPU.
    """
    ends = [
        [slice(i * side // split, -(-(i + 1) * side // split)) for i in range(split)]
        for side in maps.shape[2:]
    ]
    patches = [maps[:, :, rows, columns] for columns in ends[1] for rows in ends[0]]
    return torch.stack([patch.mean(dim=(2, 3)) for patch in patches])


def sample_patches(x: Maps, split: int, corners: Float64[Tensor, "n _"]) -> PatchMaps:
    """As many patches as the grid has, each anywhere in the view; two numbers place each."""
    size = x.shape[2] // split
    first = (corners * (x.shape[2] - size + 1)).long()  # [N, 2m]
    pixels = first[:, :, None] + torch.arange(size, device=x.device)  # [N, 2m, size]
    image = torch.arange(len(x), device=x.device)[:, None, None]
    patches = [
        x[image, :, rows[:, :, None], columns[:, None, :]]
        for rows, columns in zip(*pixels.transpose(0, 1).chunk(2), strict=True)
    ]
    return torch.stack(patches).permute(0, 1, 4, 2, 3)
