"""C4 and FPN on our ResNets: shapes, gradients, and what torchvision's own parts say."""

from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch import nn
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import RoIHeads

from selfsight import rng
from selfsight.backbones import BackboneConfig
from selfsight.backbones.resnet import BasicBlock, Bottleneck, ResNet
from selfsight.errors import UserError
from selfsight.evals.detection.rcnn import Detector, strides
from selfsight.evals.detection.rcnn_layers import Float32, RoIPool, Sampler, select_lowest
from selfsight.nn.batch_norm import BatchNorm
from tests.evals.detection.generated_data import TINY

SIZES = [(64, 64), (64, 48)]
C4 = replace(TINY, neck="c4", anchors=(8, 16, 32), boxes_sampled=16)
SIMO = replace(TINY, head="4conv1fc")


def network(block=BasicBlock, stem="imagenet", **more):
    torch.manual_seed(0)
    return ResNet(block, (1, 1, 1, 1), width=8, stem=stem, **more)


def batch():
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    masks = torch.zeros(1, 64, 64, dtype=torch.uint8)
    masks[:, 10:40, 8:30] = 1
    box = {"boxes": torch.tensor([[8.0, 10.0, 30.0, 40.0]]), "labels": torch.tensor([1])}
    return x, SIZES, [box | {"masks": masks}] * 2, torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("settings", "stem", "block"),
    [
        (TINY, "imagenet", Bottleneck),
        (SIMO, "imagenet", BasicBlock),
        (C4, "imagenet", BasicBlock),
        (C4, "half", Bottleneck),
        (TINY, "lowres", BasicBlock),
    ],
    ids=["fpn", "simo", "c4", "c4-half", "fpn-lowres"],
)
def test_every_weight_of_mask_rcnn_learns(settings, stem, block):
    detector = Detector(network(block, stem), 2, replace(settings, masks=True)).train()
    losses = detector.losses(*batch())
    assert len(losses) == 5
    sum(losses.values()).backward()
    idle = [n for n, p in detector.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []


@pytest.mark.parametrize("settings", [TINY, C4], ids=["fpn", "c4"])
def test_detections_lie_within_their_images(settings):
    detector = Detector(network(), 2, replace(settings, masks=True)).eval()
    detector.heads.score_thresh = 0.0
    with torch.no_grad():
        answers = detector(*batch()[:2])
    for answer, (height, width) in zip(answers, SIZES, strict=True):
        assert len(answer["boxes"]) > 0 and set(answer["labels"].tolist()) <= {1, 2}
        assert answer["boxes"].min() >= 0
        assert answer["boxes"][:, 2].max() <= width and answer["boxes"][:, 3].max() <= height
        assert torch.equal(answer["scores"], answer["scores"].sort(descending=True).values)
        assert answer["masks"].shape[0] == len(answer["boxes"])


@pytest.mark.parametrize("settings", [TINY, C4], ids=["fpn", "c4"])
def test_an_image_in_which_nothing_is_likely_has_no_detections(settings):
    detector = Detector(network(), 2, replace(settings, masks=True)).eval()
    detector.heads.score_thresh = 1.0
    with torch.no_grad():
        answers = detector(*batch()[:2])
    assert [len(a["boxes"]) for a in answers] == [len(a["masks"]) for a in answers] == [0, 0]


@pytest.mark.parametrize("settings", [TINY, C4], ids=["fpn", "c4"])
def test_a_detector_starts_from_the_backbones_weights_and_leaves_them_alone(settings):
    backbone = network()
    before = {k: v.clone() for k, v in backbone.state_dict().items()}
    detector = Detector(backbone, 2, settings).train()
    mine = dict(detector.trunk.network.state_dict())
    if settings.neck == "c4":
        res5 = detector.heads.box_head[0].state_dict()
        mine |= {f"layer4.{k}": v for k, v in res5.items()}
    assert mine.keys() == before.keys()
    assert all(torch.equal(mine[k], before[k]) for k in before)
    sum(detector.losses(*batch()).values()).backward()
    assert all(torch.equal(v, before[k]) for k, v in backbone.state_dict().items())
    own = sum(p.numel() for p in detector.parameters() if id(p) in detector.pretrained)
    assert own == sum(p.numel() for p in backbone.parameters())


def test_frozen_weights_of_a_backbone_are_trained_by_the_detector():
    detector = Detector(network().requires_grad_(False), 2, TINY)
    assert all(p.requires_grad for p in detector.parameters())


@pytest.mark.parametrize("settings", [TINY, C4, SIMO], ids=["fpn", "c4", "simo"])
def test_all_norms_are_over_all_processes(settings):
    detector = Detector(network(), 2, settings)
    norms = [m for m in detector.modules() if isinstance(m, BatchNorm)]
    assert norms and all(norm.group is None for norm in norms)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in detector.modules())


def test_the_norm_after_res5_is_an_option():
    plain, extra = (Detector(network(), 2, replace(C4, extra_norm=e)) for e in (False, True))
    difference = set(dict(extra.named_parameters())) - set(dict(plain.named_parameters()))
    assert difference == {"heads.box_head.1.weight", "heads.box_head.1.bias"}


def test_new_weights_come_from_the_seed_and_not_from_global_state():
    torch.manual_seed(1)
    a = Detector(network(), 2, TINY, seed=3)
    torch.manual_seed(2)
    b = Detector(network(), 2, TINY, seed=3)
    assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())


@pytest.mark.parametrize(("stem", "finest"), [("imagenet", 4), ("half", 2), ("lowres", 1)])
def test_strides_are_those_of_the_maps(stem, finest):
    net = network(stem=stem)
    assert strides(net) == tuple(
        64 // net.forward_to_stage(torch.zeros(1, 3, 64, 64), i).shape[2] for i in (1, 2, 3, 4)
    )
    assert strides(net)[0] == finest


def test_published_anchors_are_32_to_512_pixels():
    for neck, sides in (
        ("c4", ((32, 64, 128, 256, 512),)),
        ("fpn", ((32,), (64,), (128,), (256,), (512,))),
    ):
        settings = replace(TINY, neck=neck, anchors=None)
        assert Detector(network(), 2, settings).rpn.anchor_generator.sizes == sides


def eval_parts(settings):
    detector = Detector(network(Bottleneck), 2, settings).eval()
    x, sizes, targets, position = batch()
    with torch.no_grad():
        maps = OrderedDict(detector.trunk(x))
        proposals, _ = detector.rpn(ImageList(x, sizes), maps, None)
    return detector, maps, proposals, targets, position


def as_torchvision(detector, settings, *, masks):
    """The same parts in torchvision's own heads."""
    ours = detector.heads
    box_head = nn.Sequential(*ours.box_head, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    theirs = RoIHeads(
        ours.box_roi_pool, box_head, ours.box_predictor, 0.5, 0.5, settings.boxes_sampled, 0.25,
        None, ours.score_thresh, 0.5, settings.max_detections,
        *((ours.box_roi_pool, ours.box_head, ours.mask_predictor) if masks else ()),
    )  # fmt: skip
    theirs.fg_bg_sampler = ours.fg_bg_sampler
    return theirs


def test_the_res5_head_detects_what_torchvisions_heads_detect():
    settings = replace(C4, masks=True)
    detector, maps, proposals, _, _ = eval_parts(settings)
    detector.heads.score_thresh = 0.0
    with torch.no_grad():
        ours, _ = detector.heads(maps, proposals, SIZES)
        theirs, _ = as_torchvision(detector, settings, masks=True).eval()(maps, proposals, SIZES)
    for mine, other in zip(ours, theirs, strict=True):
        assert len(mine["boxes"]) > 0
        torch.testing.assert_close(mine, other)


def test_the_res5_heads_box_losses_are_torchvisions():
    detector, maps, proposals, targets, position = eval_parts(C4)
    detector.heads.train()
    for sampler in detector.samplers:
        sampler.position = position
    copies = [[p.clone() for p in proposals] for _ in range(2)]
    _, ours = detector.heads(maps, copies[0], SIZES, targets)
    _, theirs = as_torchvision(detector, C4, masks=False).train()(maps, copies[1], SIZES, targets)
    torch.testing.assert_close(ours, theirs)


def test_pooled_cells_of_a_ramp_are_their_places():
    """A map whose value is the pixel's x pools to the centers of the cells."""
    x = torch.arange(32.0) * 4 + 2  # centers of cells of stride 4
    ramp = x.expand(1, 1, 32, 32).contiguous()
    pooled = RoIPool((4,), 4)({"0": ramp}, [torch.tensor([[20.0, 30.0, 52.0, 70.0]])])
    torch.testing.assert_close(pooled[0, 0, 0], torch.tensor([24.0, 32.0, 40.0, 48.0]))


def test_regions_come_from_the_level_of_equation_1():
    maps = {str(i): torch.full((1, 1, 64, 64), float(i)) for i in range(4)}
    sides = torch.tensor([10.0, 111.0, 113.0, 223.0, 225.0, 449.0, 2000.0])
    boxes = torch.stack([torch.zeros(7), torch.zeros(7), sides, sides], dim=1)
    pooled = RoIPool((4, 8, 16, 32), 1)(maps, [boxes]).flatten()
    # Sides of 224 belong to the stride of 16, halves of it to the stride of 8.
    assert pooled.tolist() == [0, 0, 1, 1, 2, 3, 3]


def test_samples_are_as_many_as_asked_and_of_the_right_kind():
    sampler = Sampler(8, 0.25, rng.key(0, "x"))
    sampler.position = torch.tensor([0, 1, 2])
    many = torch.tensor([1.0] * 10 + [0.0] * 20 + [-1.0] * 5)
    few = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0])
    none = torch.zeros(3)
    positive, negative = sampler([many, few, none])
    assert [int(p.sum()) for p in positive] == [2, 1, 0]
    assert [int(n.sum()) for n in negative] == [6, 7, 3]
    for label, p, n in zip((many, few, none), positive, negative, strict=True):
        assert (label[p] > 0).all() and (label[n] == 0).all()
    assert [int(c) for c in sampler.counts] == [19, 3]


def test_an_image_gets_the_same_samples_in_any_company():
    key = rng.key(0, "x")
    labels = [
        torch.randint(-1, 2, (n,), generator=torch.Generator().manual_seed(n)) for n in (40, 60)
    ]
    together, alone = Sampler(8, 0.5, key), Sampler(8, 0.5, key)
    together.position, alone.position = torch.tensor([5, 6]), torch.tensor([6])
    both, single = together(labels), alone(labels[1:])
    assert torch.equal(both[0][1], single[0][0]) and torch.equal(both[1][1], single[1][0])


def test_every_candidate_is_drawn_equally_often():
    candidate = torch.tensor([True, True, False, True, True]).expand(4000, 5)
    draw = rng.bits(rng.key(0, "fair"), torch.arange(4000), 5)
    share = select_lowest(draw, candidate, torch.full((4000,), 2)).double().mean(dim=0)
    assert share.tolist() == pytest.approx([0.5, 0.5, 0, 0.5, 0.5], abs=0.03)


def test_predictors_compute_in_full_precision():
    layer = nn.Linear(64, 8)
    x = torch.randn(4, 64)
    with torch.autocast("cpu", torch.bfloat16):
        half, full = layer(x), Float32(layer)(x)
    assert half.dtype == torch.bfloat16 and torch.equal(full, layer(x))


@pytest.mark.parametrize(
    ("backbone", "settings", "sentence"),
    [
        (BackboneConfig(name="resnet8_narrow").build(), TINY, "four stages"),
        (BackboneConfig(name="vit_t4", image_size=32).build(), TINY, "built on our ResNets"),
        (network(in_channels=1), TINY, "has 1 input channels"),
    ],
)
def test_backbones_that_cannot_carry_a_detector_get_a_sentence(backbone, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        Detector(backbone, 2, settings)


def test_gray_images_work_with_their_own_statistics():
    settings = replace(TINY, mean=(0.5,), std=(0.25,))
    x, sizes, targets, position = batch()
    losses = (
        Detector(network(in_channels=1), 2, settings)
        .train()
        .losses(x[:, :1], sizes, targets, position)
    )
    assert torch.isfinite(sum(losses.values()))
