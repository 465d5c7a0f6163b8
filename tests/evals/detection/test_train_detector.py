"""Batches, the schedule, and that what is learned does not depend on the number of processes."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from selfsight import dist
from selfsight.backbones import BackboneConfig
from selfsight.errors import DivergedError, UserError
from selfsight.evals.detection import (
    PUBLISHED,
    DetectionEvaluator,
    DetectorSettings,
    compare,
    with_iterations,
)
from selfsight.evals.detection.instances import no_instances
from selfsight.evals.detection.loader import (
    DecodedImages,
    epoch_order,
    fit_size,
    load_batches,
    padded_size,
    plan_training_batch,
)
from selfsight.evals.detection.rcnn import Detector
from selfsight.evals.detection.train_detector import (
    average_gradients,
    build_optimizer,
    fit,
    recompute_batch_norm,
    total_loss,
)
from selfsight.evals.encoder_differences import paired_differences
from selfsight.nn.batch_norm import BatchNorm
from tests.evals.detection.generated_data import TINY, rectangles


def backbone(seed=0):
    torch.manual_seed(seed)
    return BackboneConfig(name="resnet10_narrow", stem="half").build()


def loaded(objects, settings, *, masks=True):
    return DecodedImages(
        objects, store_size=96, channels=3, masks=masks, device=torch.device("cpu")
    )


def first_batch(objects, settings, step=0, seed=0):
    plans = [plan_training_batch(objects, settings, step, seed)]
    return next(load_batches(loaded(objects, settings), plans, settings))


@pytest.mark.parametrize(
    ("size", "short", "longest", "expected"),
    [
        ((480, 640), 800, 1333, (800, 1067)),
        ((480, 960), 800, 1333, (666, 1333)),  # the long side decides
        ((640, 480), 480, 1333, (640, 480)),
    ],
)
def test_images_are_resized_by_their_short_side(size, short, longest, expected):
    assert fit_size(size, short, longest) == expected


def test_a_batch_is_as_large_as_its_largest_sides_and_divisible():
    assert padded_size([(33, 60), (64, 20)]) == (64, 64)
    assert padded_size([(800, 1067), (900, 640)]) == (928, 1088)


def test_every_epoch_shows_every_image_once_in_another_order():
    shown = epoch_order(10, torch.arange(30), seed=0).view(3, 10)
    assert all(sorted(epoch) == list(range(10)) for epoch in shown.tolist())
    assert len({tuple(epoch) for epoch in shown.tolist()}) == 3


def test_boxes_and_masks_follow_the_image_when_it_is_resized_and_mirrored():
    objects = rectangles(8)
    settings = replace(TINY, batch_size=8, short_sides=(64, 96, 80))
    plan = plan_training_batch(objects, settings, 0, 0)
    batch = first_batch(objects, settings)
    assert len(set(plan.sizes)) > 1 and len(set(plan.flip)) == 2
    for x, target, size in zip(batch.pixels, batch.targets, plan.sizes, strict=True):
        red = x[0] * TINY.std[0] + TINY.mean[0]
        green = x[1] * TINY.std[1] + TINY.mean[1]
        for box, label, mask in zip(
            target["boxes"], target["labels"], target["masks"], strict=True
        ):
            left, top, right, bottom = (box + torch.tensor([2, 2, -2, -2])).round().int().tolist()
            inside = (red - green)[top:bottom, left:right]
            assert (inside > 0.5).all() if label == 1 else (inside < -0.5).all()
            assert mask.shape == size and mask[top:bottom, left:right].all()
            area = (box[2] - box[0]) * (box[3] - box[1])
            assert mask.sum().item() == pytest.approx(area.item(), rel=0.15)


def test_the_flip_is_drawn_anew_and_half_of_the_time():
    objects, settings = rectangles(4), replace(TINY, batch_size=20)
    flip = [m for s in range(20) for m in plan_training_batch(objects, settings, s, 0).flip]
    assert 0.42 < np.mean(flip) < 0.58


def plans_of(steps):
    return [plan_training_batch(rectangles(10), TINY, s, 0) for s in range(steps)]


def test_two_processes_share_the_batches_of_one(two_processes):
    whole = plans_of(3)
    parts = two_processes(plans_of, 3)
    for step, plan in enumerate(whole):
        shares = [part[step] for part in parts]
        assert [i for s in shares for i in s.images] == plan.images
        assert [m for s in shares for m in s.flip] == plan.flip
        assert all(s.padded == plan.padded for s in shares)


def trained(neck):
    """Losses, gradients and weights of two steps in float64, where ties are rare."""
    anchors = None if neck == "c4" else TINY.anchors
    settings = replace(
        TINY, neck=neck, anchors=anchors, masks=True, boxes_sampled=8, rpn_train=(50, 20),
        short_sides=(56, 64), lr=0.01, backbone_lr=0.001,
    )  # fmt: skip
    objects = rectangles(6)
    detector = Detector(backbone(), 2, settings).double().train()
    optimizer = build_optimizer(detector, settings)
    parameters = list(detector.parameters())
    losses, gradients = [], []
    for step in range(2):
        batch = first_batch(objects, settings, step)
        targets = [t | {"boxes": t["boxes"].double()} for t in batch.targets]
        loss = total_loss(
            detector, batch._replace(pixels=batch.pixels.double(), targets=targets), None
        )
        optimizer.zero_grad()
        loss.backward()
        average_gradients(parameters)
        losses.append(dist.mean(loss.detach()))
        gradients.append([p.grad.clone() for p in parameters])
        optimizer.step()
    return losses, gradients, {k: v.clone() for k, v in detector.state_dict().items()}


def decayed():
    """A layer that no process uses, after two steps: the first has a gradient, the second none."""
    used, unused = (torch.nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
    optimizer = torch.optim.SGD([used, unused], lr=0.1, momentum=0.9, weight_decay=0.5)
    for loss in ((used * unused).sum(), used.sum()):
        optimizer.zero_grad()
        loss.backward()
        average_gradients([used, unused])
        optimizer.step()
    return unused.detach().clone()


def test_a_layer_without_gradient_is_decayed_alike_on_one_and_on_two_processes(two_processes):
    step = 1 + 0.5  # gradient and decay
    weight = 1 - 0.1 * step
    expected = weight - 0.1 * (0.9 * step + 0.5 * weight)  # momentum and decay
    for found in (decayed(), *two_processes(decayed)):
        assert found.tolist() == pytest.approx([expected, expected])


@pytest.mark.parametrize("neck", ["fpn", "c4"])
def test_two_processes_train_as_one_does(two_processes, neck):
    losses, gradients, state = trained(neck)
    for theirs in two_processes(trained, neck):
        torch.testing.assert_close(theirs[0], losses, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(theirs[1], gradients, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(theirs[2], state, rtol=1e-4, atol=1e-7)


def detected():
    objects = rectangles(10)
    evaluation = DetectionEvaluator(train=objects, test=objects, detector=TINY)
    detector = Detector(backbone(), 2, TINY)
    return evaluation.detect(detector, loaded(objects, TINY, masks=False))


def test_two_processes_detect_what_one_does(two_processes):
    found = detected()
    assert sum(len(f.boxes) for f in found) > 10
    for theirs in two_processes(detected):
        for mine, other in zip(found, theirs, strict=True):
            assert np.array_equal(mine.boxes, other.boxes)
            assert np.array_equal(mine.scores, other.scores)


def refused(batch_size):
    settings = replace(TINY, batch_size=batch_size)
    try:
        fit(Detector(backbone(), 2, settings), loaded(rectangles(4), settings), settings, seed=0)
    except UserError as error:
        return str(error)


def test_a_batch_that_processes_cannot_share_gets_a_sentence(two_processes):
    for sentence in two_processes(refused, 3):
        assert sentence.startswith("batch_size is 3, but must be a multiple")


def test_new_layers_and_backbone_have_their_own_rates_and_norms_no_decay():
    settings = replace(TINY, lr=1e-2, backbone_lr=1e-3)
    network = backbone()
    detector = Detector(network, 2, settings)
    groups = build_optimizer(detector, settings).param_groups
    count = {(g["lr"], g["weight_decay"]): sum(p.numel() for p in g["params"]) for g in groups}
    assert set(count) == {(1e-2, 1e-4), (1e-2, 0.0), (1e-3, 1e-4), (1e-3, 0.0)}
    own = sum(p.numel() for p in network.parameters())
    assert count[1e-3, 1e-4] + count[1e-3, 0.0] == own
    assert sum(count.values()) == sum(p.numel() for p in detector.parameters())


def test_statistics_are_plain_means_over_the_batches():
    objects = rectangles(8)
    detector = Detector(backbone(), 2, TINY).train()
    feed = [first_batch(objects, TINY, step) for step in range(3)]
    stem = detector.trunk.network
    maps = [stem.conv1(batch.pixels) for batch in feed]
    recompute_batch_norm(detector, iter(feed))
    mean = torch.stack([m.mean((0, 2, 3)) for m in maps]).mean(0)
    torch.testing.assert_close(stem.bn1.running_mean, mean)
    assert {m.momentum for m in detector.modules() if isinstance(m, BatchNorm)} == {0.1}


def test_a_run_that_diverges_says_so():
    settings = replace(TINY, lr=1e8, iterations=4, precise_bn=0, batch_size=2)
    with pytest.raises(DivergedError, match=r"diverged. Lower lr"):
        fit(Detector(backbone(), 2, settings), loaded(rectangles(2), settings), settings, seed=0)


def test_images_without_objects_are_not_learned_from_but_are_scored():
    objects = rectangles(6)
    emptied = replace(objects, instances=[no_instances(masks=True), *objects.instances[1:]])
    evaluation = DetectionEvaluator(
        train=emptied, test=emptied, detector=replace(TINY, iterations=1, precise_bn=0)
    )
    assert evaluation.notes == ("1 of 6 images of rectangles have no object: left out.",)
    numbers = evaluation(backbone())
    assert {"box_AP", "box_AP50", "box_AP75", "train_loss"} <= set(numbers)


def test_the_same_seed_gives_the_same_numbers_and_trials_their_mean():
    objects = rectangles(3)
    short = replace(TINY, iterations=1, precise_bn=0, batch_size=2)
    once = DetectionEvaluator(train=objects, test=objects, detector=short)
    a, b = once(backbone()), replace(once, seed=1)(backbone())
    both = replace(once, detector=replace(once.detector, trials=2))(backbone())
    assert both["train_loss"] == pytest.approx((a["train_loss"] + b["train_loss"]) / 2)
    assert a["train_loss"] != b["train_loss"] and "box_AP_spread" in both
    replicates = [scores["per_image"].replicates["box_AP"] for scores in (a, b, both)]
    assert replicates[2] == pytest.approx((replicates[0] + replicates[1]) / 2)


def test_backbones_are_compared_in_rows():
    objects = rectangles(4)
    short = replace(TINY, iterations=1, precise_bn=0, batch_size=2)
    evaluation = DetectionEvaluator(train=objects, test=objects, detector=short)
    rows = compare(
        evaluation, {"one": backbone(0), "another": backbone(1), "one again": backbone(0)}
    )
    assert [row["backbone"] for row in rows] == ["one", "another", "one again"]
    assert rows[0]["train_loss"] == rows[2]["train_loss"] != rows[1]["train_loss"]
    assert "difference" not in rows[0] and rows[2]["difference"][:3] == (0, 0, 0)


def test_wrong_images_get_a_sentence():
    objects = rectangles(2)
    for wrong, sentence in (
        (replace(objects, sizes=np.full((2, 2), 65, np.int64)), "is 64 x 64 pixels, but"),
        (replace(objects, read=lambda i: b"no image"), "cannot be read"),
    ):
        with pytest.raises(UserError, match=sentence):
            first_batch(wrong, TINY)


def test_a_missing_pycocotools_is_missed_before_training(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools.cocoeval", None)
    objects = rectangles(2)
    with pytest.raises(UserError, match=r"pip install 'selfsight\[detection\]'"):
        DetectionEvaluator(train=objects, test=objects)(backbone())


def test_sets_with_nothing_to_find_get_a_sentence():
    objects = rectangles(2)
    empty = replace(objects, instances=[no_instances(masks=True)] * 2)
    with pytest.raises(UserError, match="nothing can be scored"):
        DetectionEvaluator(train=objects, test=empty, detector=TINY)
    with pytest.raises(UserError, match="has an object to train on"):
        DetectionEvaluator(train=empty, test=objects, detector=TINY)(backbone())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"iterations": 0}, "iterations is 0"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"short_sides": ()}, "short_sides"),
        ({"neck": "fpn", "anchors": (8, 16)}, "5 levels"),
        ({"warmup": 24000}, "^warmup is 24000, but iterations is 24000. Lower"),
        ({"mean": (0.5,)}, "mean has 1 numbers"),
    ],
)
def test_settings_that_cannot_work_get_a_sentence(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        replace(PUBLISHED["voc_c4"], **changes)


@pytest.mark.parametrize(
    ("name", "iterations", "falls", "lr", "backbone_lr", "masks"),
    [
        ("voc_c4", 24_000, (18_000, 22_000), 0.02, None, False),
        ("msbreg_voc", 24_000, (18_000, 22_000), 0.02, None, False),
        ("fast_moco_voc", 24_000, (18_000, 22_000), 1e-2, 1e-3, False),
        ("coco_c4_1x", 90_000, (60_000, 80_000), 0.02, None, True),
        ("coco_c4_2x", 180_000, (120_000, 160_000), 0.02, None, True),
        ("fast_moco_coco", 90_000, (60_000, 80_000), 1e-2, 1e-3, True),
        ("coco_fpn_msbreg", 90_000, (60_000, 80_000), 0.05, None, True),
    ],
)
def test_published_schedules(name, iterations, falls, lr, backbone_lr, masks):
    settings = PUBLISHED[name]
    assert (settings.iterations, settings.milestones) == (iterations, falls)
    assert (settings.lr, settings.backbone_lr, settings.masks) == (lr, backbone_lr, masks)
    assert (settings.batch_size, settings.momentum, settings.weight_decay) == (16, 0.9, 1e-4)
    rate = settings.schedule.lr
    for at, expected in ((falls[0] - 1, lr), (falls[0], lr / 10), (falls[1], lr / 100)):
        assert rate(at, iterations, lr) == pytest.approx(expected)
    assert rate(settings.warmup // 2, iterations, lr) == pytest.approx(lr * 0.5005)


def test_simo_trains_for_twelve_epochs_and_falls_after_seven_and_eleven():
    settings = PUBLISHED["coco_fpn_simo"]
    epoch = 117_266 / settings.batch_size
    epochs = [i / epoch for i in (*settings.milestones, settings.iterations)]
    assert epochs == pytest.approx([7, 11, 12], abs=1e-3)
    assert (settings.lr, settings.head, settings.new_norm) == (0.2, "4conv1fc", True)
    assert settings.short_sides[0] == 640 and settings.short_sides[-1] == 800


def test_a_shorter_schedule_keeps_its_shares():
    short = with_iterations(DetectorSettings(), 240)
    assert (short.iterations, short.milestones, short.warmup) == (240, (180, 220), 1)


def test_settings_of_a_result_say_what_was_trained_on():
    objects = rectangles(2)
    told = DetectionEvaluator(train=objects, test=objects, detector=TINY, seed=5).settings()
    assert told["train_images"] == 2 and told["seed"] == 5 and told["neck"] == "fpn"


@pytest.mark.slow
def test_thirty_iterations_find_colored_rectangles():
    train, test = rectangles(64), rectangles(16, seed=1)
    settings = replace(TINY, masks=True, iterations=30, lr=0.02, precise_bn=8)
    learned = DetectionEvaluator(train=train, test=test, detector=settings)(backbone())
    still = replace(settings, iterations=1, lr=1e-9)
    untrained = DetectionEvaluator(train=train, test=test, detector=still)(backbone())
    for kind in ("box", "mask"):
        assert learned[f"{kind}_AP50"] > 0.2 > 0.1 > untrained[f"{kind}_AP50"]
        low, high = (learned[f"{kind}_AP50_{end}"] for end in ("low", "high"))
        assert low < learned[f"{kind}_AP50"] < high
        pair = paired_differences(learned["per_image"], untrained["per_image"])[f"{kind}_AP50"]
        assert pair.n == 16 and 0 < pair.low < pair.difference < pair.high


@pytest.mark.gpu
@pytest.mark.parametrize("neck", ["fpn", "c4"])
def test_a_gpu_learns_in_half_precision(neck):
    settings = replace(
        TINY, neck=neck, anchors=None if neck == "c4" else TINY.anchors, masks=True,
        iterations=150, lr=0.02, precise_bn=8,
    )  # fmt: skip
    evaluation = DetectionEvaluator(
        train=rectangles(64), test=rectangles(16, seed=1), detector=settings,
        device=torch.device("cuda"),
    )  # fmt: skip
    assert evaluation(backbone())["box_AP50"] > 0.3


@pytest.mark.gpu
def test_a_gpu_gives_the_losses_of_a_cpu():
    objects = rectangles(4)
    settings = replace(TINY, masks=True)
    values = []
    for device in ("cpu", "cuda"):
        images = DecodedImages(
            objects, store_size=96, channels=3, masks=True, device=torch.device(device)
        )
        detector = Detector(backbone(), 2, settings).to(device).train()
        batch = next(load_batches(images, [plan_training_batch(objects, settings, 0, 0)], settings))
        values.append(total_loss(detector, batch, None).item())
    assert values[1] == pytest.approx(values[0], rel=1e-3)
