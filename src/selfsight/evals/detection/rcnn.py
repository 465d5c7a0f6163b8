"""Faster R-CNN and Mask R-CNN on our ResNets, with C4 or a feature pyramid.

Built from torchvision's modules as in detectron2, which the papers use: R50-C4 uses the map after
res4 and runs res5 on every region (Ren et al. 2015, arXiv:1506.01497; He et al. 2017,
arXiv:1703.06870); FPN (Lin et al. 2017, arXiv:1612.03144) uses four maps and a coarser one.
"""

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import (
    FastRCNNConvFCHead,
    FastRCNNPredictor,
    TwoMLPHead,
)
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from selfsight import rng
from selfsight.backbones.resnet import ResNet
from selfsight.errors import UserError
from selfsight.evals.detection.detector_settings import DetectorSettings
from selfsight.evals.detection.loader import Size, Target
from selfsight.evals.detection.rcnn_layers import Float32, Res5Heads, RoIPool, Sampler, loss_weight
from selfsight.nn.batch_norm import BatchNorm, convert_batch_norm

C4_POOL, BOX_POOL, MASK_POOL = 14, 7, 14  # side of pooled features
RATIOS = (0.5, 1.0, 2.0)


class Detector(nn.Module):
    """A detector on a copy of a backbone; new layers are initialized from the seed."""

    rpn: Any
    heads: Any

    def __init__(
        self, backbone: nn.Module, num_classes: int, settings: DetectorSettings, *, seed: int = 0
    ) -> None:
        super().__init__()
        network = prepare_backbone(backbone, settings)
        self.pretrained = {id(p) for p in network.parameters()}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            build = _c4 if settings.neck == "c4" else _fpn
            self.trunk, self.rpn, self.heads = build(network, num_classes + 1, settings)
        self.samplers = [
            Sampler(settings.anchors_sampled, 0.5, rng.key(seed, "detection", "anchors")),
            Sampler(settings.boxes_sampled, 0.25, rng.key(seed, "detection", "boxes")),
        ]
        self.rpn.fg_bg_sampler, self.heads.fg_bg_sampler = self.samplers

    def losses(
        self, x: Tensor, sizes: list[Size], targets: list[Target], position: Tensor
    ) -> dict[str, Tensor]:
        """The losses of a batch; their mean over processes is the loss of the global batch."""
        for sampler in self.samplers:
            sampler.position = position
        losses = self._run(x, sizes, targets)[1]
        anchors, boxes = (sampler.counts for sampler in self.samplers)
        assert anchors is not None and boxes is not None
        weights = {
            "loss_objectness": anchors[0],
            "loss_rpn_box_reg": anchors[0],
            "loss_classifier": boxes[0],
            "loss_box_reg": boxes[0],
            "loss_mask": boxes[1],
        }
        return {name: value * loss_weight(weights[name]) for name, value in losses.items()}

    def forward(self, x: Tensor, sizes: list[Size]) -> list[dict[str, Tensor]]:
        """Boxes, labels (from 1), scores and maybe masks of each image, best first."""
        return self._run(x, sizes, None)[0]

    def _run(
        self, x: Tensor, sizes: list[Size], targets: list[Target] | None
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        # Anchors get the dtype of the maps: in bf16 they would be off by pixels.
        maps = OrderedDict(
            (name, m.to(torch.promote_types(m.dtype, torch.float32)))
            for name, m in self.trunk(x).items()
        )
        proposals, losses = self.rpn(ImageList(x, sizes), maps, targets)
        detections, head_losses = self.heads(maps, proposals, sizes, targets)
        return detections, losses | head_losses


def prepare_backbone(backbone: nn.Module, settings: DetectorSettings) -> ResNet:
    """Copy a backbone, with batch norm over all processes; raise if it does not fit."""
    if not isinstance(backbone, ResNet):
        raise UserError(
            f"Detectors are built on our ResNets, but the backbone is a {type(backbone).__name__}. "
            "Use a backbone whose name begins with resnet."
        )
    if len(backbone.layer4) == 0:
        raise UserError(
            "Detectors need a ResNet with four stages, and this one has three. "
            "Use resnet10_narrow, resnet18 or a larger one."
        )
    channels = backbone.conv1.in_channels
    if channels != len(settings.mean):
        raise UserError(
            f"The backbone has {channels} input channels, but mean and std have "
            f"{len(settings.mean)} numbers. Give {channels}."
        )
    network = copy.deepcopy(backbone).requires_grad_(True)
    convert_batch_norm(network, None)
    return network


def strides(network: ResNet) -> tuple[int, int, int, int]:
    """Stride of the map after each stage, in pixels."""
    first = network.conv1.stride[0] * (2 if isinstance(network.maxpool, nn.MaxPool2d) else 1)
    return first, 2 * first, 4 * first, 8 * first


class FeatureMaps(nn.Module):
    """The map after res4, or a feature pyramid on the maps of all four stages."""

    def __init__(self, network: ResNet, pyramid: nn.Module | None) -> None:
        super().__init__()
        self.network, self.pyramid = network, pyramid

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Maps by level, finest first."""
        if self.pyramid is None:
            return {"0": self.network.forward_to_stage(x, 3)}
        maps: OrderedDict[str, Tensor] = OrderedDict()
        x = self.network.stem(x)
        for i, layer in enumerate(self.network.layers):
            x = layer(x)
            maps[str(i)] = x
        return self.pyramid(maps)


def _c4(
    network: ResNet, num_classes: int, settings: DetectorSettings
) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Build trunk, RPN and heads on the map after res4."""
    stride = strides(network)[2]
    sides = settings.anchors or tuple(stride * 2**i for i in range(1, 6))
    dim = network.dim
    last, network.layer4 = network.layer4, nn.Sequential()
    norm = BatchNorm(dim) if settings.extra_norm else nn.Identity()
    masks = MaskRCNNPredictor(dim, settings.mask_dim, num_classes) if settings.masks else None
    heads = Res5Heads(
        RoIPool((stride,), C4_POOL),
        nn.Sequential(last, norm),
        Float32(FastRCNNPredictor(dim, num_classes)),
        **_matching(settings),
        mask_predictor=masks,
    )
    return FeatureMaps(network, None), _rpn(dim // 2, (sides,), settings), heads


def _fpn(
    network: ResNet, num_classes: int, settings: DetectorSettings
) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Build trunk, RPN and heads on a pyramid of five levels."""
    steps, dim, width = strides(network), settings.fpn_dim, network.dim
    norm = BatchNorm if settings.new_norm else None
    pyramid = FeaturePyramidNetwork(
        [width // 8, width // 4, width // 2, width], dim, LastLevelMaxPool(), norm_layer=norm
    )
    sides = settings.anchors or tuple(8 * s for s in (*steps, 2 * steps[-1]))
    if settings.head == "2fc":
        head: nn.Module = TwoMLPHead(dim * BOX_POOL**2, settings.head_dim)
    else:
        shape = (dim, BOX_POOL, BOX_POOL)
        head = FastRCNNConvFCHead(shape, [dim] * 4, [settings.head_dim], norm_layer=norm)
    masks, inner = {}, settings.mask_dim
    if settings.masks:
        masks = {
            "mask_roi_pool": RoIPool(steps, MASK_POOL),
            "mask_head": MaskRCNNHeads(dim, (inner,) * 4, 1, norm_layer=norm),
            "mask_predictor": MaskRCNNPredictor(inner, inner, num_classes),
        }
    predictor = Float32(FastRCNNPredictor(settings.head_dim, num_classes))
    heads = RoIHeads(RoIPool(steps, BOX_POOL), head, predictor, **_matching(settings), **masks)
    return FeatureMaps(network, pyramid), _rpn(dim, tuple((s,) for s in sides), settings), heads


def _matching(settings: DetectorSettings) -> dict[str, object]:
    """Thresholds for matching boxes and filtering detections; detectron2's defaults."""
    return {
        "fg_iou_thresh": 0.5,
        "bg_iou_thresh": 0.5,
        "batch_size_per_image": settings.boxes_sampled,
        "positive_fraction": 0.25,
        "bbox_reg_weights": None,
        "score_thresh": settings.min_score,
        "nms_thresh": settings.max_iou,
        "detections_per_img": settings.max_detections,
    }


def _rpn(dim: int, sides: tuple[tuple[int, ...], ...], settings: DetectorSettings) -> nn.Module:
    anchors = AnchorGenerator(sides, (RATIOS,) * len(sides))
    head = RPNHead(dim, len(RATIOS) * len(sides[0]))
    head.cls_logits, head.bbox_pred = Float32(head.cls_logits), Float32(head.bbox_pred)
    before, after = zip(settings.rpn_train, settings.rpn_test, strict=True)
    return RegionProposalNetwork(
        anchors,
        head,
        fg_iou_thresh=0.7,
        bg_iou_thresh=0.3,
        batch_size_per_image=settings.anchors_sampled,
        positive_fraction=0.5,
        pre_nms_top_n=dict(zip(("training", "testing"), before, strict=True)),
        post_nms_top_n=dict(zip(("training", "testing"), after, strict=True)),
        nms_thresh=0.7,
    )
