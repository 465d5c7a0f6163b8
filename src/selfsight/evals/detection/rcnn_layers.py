"""Layers of detectors: RoI pooling, sampling of anchors and boxes, the res5 head."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torchvision.models.detection.roi_heads import (
    RoIHeads,
    fastrcnn_loss,
    maskrcnn_inference,
    maskrcnn_loss,
)
from torchvision.ops import roi_align

from selfsight import dist, rng

CANONICAL_SIDE, CANONICAL_LEVEL = 224, 4  # FPN (arXiv:1612.03144), equation 1
NEVER = 1 << 62  # higher than every random number


class Sampler:
    """Sample positives and negatives of each image, by the image's position in the run.

    Has the interface of torchvision's BalancedPositiveNegativeSampler, which samples from global
    state. `position` is set before each step; `counts` are those of the last call.
    """

    def __init__(self, number: int, positive_share: float, key: rng.Key) -> None:
        self.number, self.most_positive, self.key = number, int(number * positive_share), key
        self.position: Int64[Tensor, " n"] = torch.zeros(0, dtype=torch.int64)
        self.counts: tuple[Tensor, Tensor] | None = None  # sampled and positive, over the batch

    def __call__(self, matched: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Masks of sampled positives (label > 0) and negatives (label 0) for each image."""
        label = pad_sequence([m.long() for m in matched], batch_first=True, padding_value=-1)
        bits = rng.bits(self.key, self.position.to(label.device), label.shape[1])
        # The column in the low bits makes every number unique, so that there are no ties.
        bits = bits * (1 << 24) + torch.arange(label.shape[1], device=label.device)
        most = torch.full((len(label),), self.most_positive, device=label.device)
        positive = select_lowest(bits, label > 0, most)
        negative = select_lowest(bits, label == 0, self.number - positive.sum(dim=1))
        self.counts = positive.sum() + negative.sum(), positive.sum()
        lengths = [len(m) for m in matched]
        return (
            [row[:n] for row, n in zip(positive, lengths, strict=True)],
            [row[:n] for row, n in zip(negative, lengths, strict=True)],
        )


def select_lowest(
    bits: Int64[Tensor, "n a"], candidate: Bool[Tensor, "n a"], number: Int64[Tensor, " n"]
) -> Bool[Tensor, "n a"]:
    """Select the `number` candidates of each row with the lowest random numbers."""
    most = min(bits.shape[1], int(number.max()))
    lowest, column = bits.masked_fill(~candidate, NEVER).topk(most, dim=1, largest=False)
    selected = (lowest < NEVER) & (torch.arange(most, device=bits.device) < number[:, None])
    return torch.zeros_like(candidate).scatter(1, column, selected)


def loss_weight(count: Shaped[Tensor, ""]) -> Float[Tensor, ""]:
    """Factor that turns a mean over this process's rows into its part of the mean over all rows."""
    everywhere = dist.all_sum(count.float().clone())
    return count * dist.world_size() / everywhere.clamp(min=1)


class RoIPool(nn.Module):
    """RoIAlign on the level of the feature pyramid that fits the size of each region."""

    def __init__(self, strides: tuple[int, ...], size: int) -> None:
        super().__init__()
        self.strides, self.size = strides, size

    def forward(
        self, maps: dict[str, Tensor], boxes: list[Tensor], shapes: Any = None
    ) -> Float[Tensor, "r c s s"]:
        """Pool the features of all boxes; the interface of torchvision's MultiScaleRoIAlign."""
        levels = list(maps.values())[: len(self.strides)]
        rows = torch.cat(boxes)
        image = torch.repeat_interleave(
            torch.arange(len(boxes), device=rows.device),
            torch.tensor([len(b) for b in boxes], device=rows.device),
        )
        regions = torch.cat([image[:, None].to(rows.dtype), rows], dim=1)
        if len(levels) == 1:
            return self._aligned(levels[0], regions, self.strides[0])
        side = ((rows[:, 2] - rows[:, 0]) * (rows[:, 3] - rows[:, 1])).clamp(min=1e-6).sqrt()
        finest = torch.tensor(self.strides[0]).log2().item()
        level = (CANONICAL_LEVEL + torch.log2(side / CANONICAL_SIDE + 1e-8) - finest).floor()
        level = level.clamp(0, len(levels) - 1)
        out = levels[0].new_zeros(len(rows), levels[0].shape[1], self.size, self.size)
        for i, (features, stride) in enumerate(zip(levels, self.strides, strict=True)):
            here = torch.where(level == i)[0]
            out = out.index_copy(0, here, self._aligned(features, regions[here], stride))
        return out

    def _aligned(self, features: Tensor, regions: Tensor, stride: int) -> Tensor:
        # A sampling ratio of 0 adapts to the size of the region, as in detectron2.
        return roi_align(features, regions, self.size, 1 / stride, sampling_ratio=0, aligned=True)


class Float32(nn.Module):
    """Run a module in float32 under autocast.

    bf16 has only 8 bits for box coordinates of up to 1333.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        """Call the module with the input in float32."""
        with torch.autocast(x.device.type, enabled=False):
            return self.inner(x.to(torch.promote_types(x.dtype, torch.float32)))


class Res5Heads(RoIHeads):
    """The head of C4 models: res5 on every region, shared by boxes and masks.

    torchvision's heads would run res5 again on the positives, with other batch-norm statistics;
    detectron2's Res5ROIHeads, which the papers use, reuses the maps.
    """

    def forward(
        self, features: Any, proposals: Any, image_shapes: Any, targets: Any = None
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Detections in evaluation mode, losses in training mode."""
        if self.training:
            proposals, matched, labels, offsets = self.select_training_samples(proposals, targets)
        maps = self.box_head(self.box_roi_pool(features, proposals))  # [R, C, 7, 7]
        logits, deltas = self.box_predictor(maps.mean((2, 3)))
        if self.training:
            on_class, on_box = fastrcnn_loss(logits, deltas, labels, offsets)
            losses = {"loss_classifier": on_class, "loss_box_reg": on_box}
            if self.mask_predictor is not None:
                on = [label > 0 for label in labels]
                losses["loss_mask"] = maskrcnn_loss(
                    self.mask_predictor(maps[torch.cat(on)]),
                    [p[o] for p, o in zip(proposals, on, strict=True)],
                    [t["masks"] for t in targets],
                    [t["labels"] for t in targets],
                    [m[o] for m, o in zip(matched, on, strict=True)],
                )
            return [], losses
        boxes, scores, classes = self.postprocess_detections(
            logits, deltas, proposals, image_shapes
        )
        detections = [
            {"boxes": b, "scores": s, "labels": c}
            for b, s, c in zip(boxes, scores, classes, strict=True)
        ]
        if self.mask_predictor is not None:
            maps = self.box_head(self.box_roi_pool(features, boxes))
            masks = maskrcnn_inference(self.mask_predictor(maps), classes)
            detections = [d | {"masks": m} for d, m in zip(detections, masks, strict=True)]
        return detections, {}
