"""Average precision of detections whose answer is known, and as pycocotools tells it."""

import contextlib
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from selfsight.evals.bootstrap_intervals import RESAMPLES, resampled_rows
from selfsight.evals.detection.coco_ap import (
    Detections,
    average_precision,
    paste_masks,
    to_detections,
)
from selfsight.evals.detection.instances import (
    DetectionDataset,
    Instances,
    encode_mask,
    subset,
    to_coco_rle,
)
from selfsight.evals.detection.resampled_ap import resample_average_precision

SIDE = 200


def objects(*images, crowd=(), area=None) -> DetectionDataset:
    """Boxes of each image, all of one class unless a box is (box, class)."""
    instances = []
    for boxes in images:
        pairs = [b if isinstance(b[0], tuple) else (b, 0) for b in boxes]
        array = np.array([b for b, _ in pairs], np.float64).reshape(-1, 4)
        own = np.prod(array[:, 2:] - array[:, :2], axis=1)
        instances.append(
            Instances(
                array,
                np.array([c for _, c in pairs], np.int64),
                np.array([i in crowd for i in range(len(pairs))], bool),
                own if area is None else np.array(area, np.float64),
                tuple(rectangle(*map(int, b)) for b in array),
            )
        )
    return DetectionDataset(
        name="made",
        names=[f"{i}.png" for i in range(len(images))],
        sizes=np.full((len(images), 2), SIDE, np.int64),
        instances=instances,
        class_names=("thing", "other"),
        read=lambda i: b"",
    )


def rectangle(left, top, right, bottom):
    mask = np.zeros((SIDE, SIDE), bool)
    mask[top:bottom, left:right] = True
    return encode_mask(mask)


def found(*claims) -> Detections:
    """(box, score) or (box, score, class) of each detection."""
    boxes = np.array([c[0] for c in claims], np.float32).reshape(-1, 4)
    return Detections(
        boxes,
        np.array([c[2] if len(c) > 2 else 0 for c in claims], np.int64),
        np.array([c[1] for c in claims], np.float32),
        tuple(to_coco_rle(rectangle(*map(int, b)), SIDE, SIDE) for b in boxes),
    )


BOX = (20, 30, 120, 130)
FAR = (150, 150, 190, 190)


@pytest.mark.parametrize("kind", ["box", "mask"])
def test_perfect_detections_score_one(kind):
    there = objects([BOX, FAR], [(10, 10, 30, 30)])
    claims = [found((BOX, 0.9), (FAR, 0.8)), found(((10, 10, 30, 30), 0.7))]
    scores = average_precision(there, claims, task=kind)
    assert set(scores) == {f"{kind}_AP{x}" for x in ("", "50", "75", "_s", "_m", "_l")}
    assert list(scores.values()) == pytest.approx([1] * 6)


def test_nothing_found_scores_zero():
    assert average_precision(objects([BOX]), [found()])["box_AP"] == 0


@pytest.mark.parametrize("kind", ["box", "mask"])
def test_a_box_shifted_by_a_fifth_overlaps_by_two_thirds(kind):
    """80 x 100 of 12,000 pixels: right at 0.5, 0.55, 0.6 and 0.65 of ten thresholds."""
    claims = [found(((40, 30, 140, 130), 0.9))]
    scores = average_precision(objects([BOX]), claims, task=kind)
    assert scores[f"{kind}_AP"] == pytest.approx(0.4)
    assert scores[f"{kind}_AP50"] == pytest.approx(1) and scores[f"{kind}_AP75"] == 0


def test_a_better_scored_mistake_halves_precision():
    claims = [found((FAR, 0.9), (BOX, 0.8))]
    assert average_precision(objects([BOX]), claims)["box_AP50"] == pytest.approx(1 / 2)


def test_a_worse_scored_mistake_costs_nothing():
    claims = [found((FAR, 0.7), (BOX, 0.8))]
    assert average_precision(objects([BOX]), claims)["box_AP50"] == pytest.approx(1)


@pytest.mark.parametrize(("points", "reached"), [(101, 51), (11, 6)])
def test_half_of_the_objects_reach_half_of_the_recalls(points, reached):
    claims = [found((BOX, 0.9))]
    scores = average_precision(objects([BOX, FAR]), claims, recall_points=points)
    assert scores["box_AP50"] == pytest.approx(reached / points)


def test_the_right_box_with_the_wrong_class_is_a_mistake():
    there = objects([(BOX, 0), (FAR, 1)])
    claims = [found((BOX, 0.9, 1), (FAR, 0.8, 1))]
    assert average_precision(there, claims)["box_AP50"] == pytest.approx((0 + 1 / 2) / 2)


def test_a_detection_within_a_crowd_is_no_mistake():
    there = objects([BOX, (130, 130, 200, 200)], crowd=(1,))
    claims = [found(((140, 140, 170, 170), 0.95), ((150, 150, 180, 180), 0.9), (BOX, 0.8))]
    assert average_precision(there, claims)["box_AP"] == pytest.approx(1)


def test_an_object_beyond_every_size_is_not_asked_for_and_its_detection_no_mistake():
    there = objects([BOX, FAR], area=[10_000, np.inf])
    assert average_precision(there, [found((FAR, 0.9), (BOX, 0.8))])["box_AP"] == pytest.approx(1)
    assert average_precision(there, [found((BOX, 0.8))])["box_AP"] == pytest.approx(1)


def test_sizes_without_objects_are_left_out():
    scores = average_precision(objects([BOX]), [found((BOX, 0.9))])
    assert "box_AP_l" in scores and not {"box_AP_s", "box_AP_m"} & set(scores)


def test_only_the_best_detections_of_an_image_count():
    claims = [found((FAR, 0.9), (BOX, 0.8))]
    assert average_precision(objects([BOX]), claims, max_detections=1)["box_AP"] == 0


def random_scene(images, rng):
    """Objects of two classes, and detections near most of them; some objects are crowds."""

    def some_boxes(n):
        corner = rng.integers(0, 60, (n, 2))
        return np.concatenate([corner, corner + rng.integers(8, 140, (n, 2))], axis=1)

    truth = [some_boxes(4) for _ in range(images)]
    there = objects(*[[(tuple(b), int(rng.integers(2))) for b in boxes] for boxes in truth])
    claims = []
    for boxes in truth:
        near = np.clip(boxes + rng.integers(-12, 13, boxes.shape), 0, SIDE)
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
        guesses = np.concatenate([near, some_boxes(3)])
        claims.append(found(*((b, rng.random(), int(rng.integers(2))) for b in guesses)))
    return there, claims


@pytest.mark.parametrize("kind", ["box", "mask"])
def test_numbers_are_those_that_pycocotools_prints(kind, tmp_path):
    there, claims = random_scene(12, np.random.default_rng(0))

    def xywh(box):
        left, top, right, bottom = map(float, box)
        return [left, top, right - left, bottom - top]

    annotations, results = [], []
    for image, (real, said) in enumerate(zip(there.instances, claims, strict=True)):
        for i, box in enumerate(real.boxes):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": int(real.labels[i]),
                    "bbox": xywh(box),
                    "area": float(real.area[i]),
                    "iscrowd": 0,
                    "segmentation": real.masks[i],
                }
            )
        for i, box in enumerate(said.boxes):
            mask = dict(said.masks[i])
            mask["counts"] = mask["counts"].decode()
            shape = {"bbox": xywh(box)} if kind == "box" else {"segmentation": mask}
            results.append(
                {
                    "image_id": image,
                    "category_id": int(said.labels[i]),
                    "score": float(said.scores[i]),
                    **shape,
                }
            )
    images = [{"id": i, "height": SIDE, "width": SIDE} for i in range(len(there))]
    categories = [{"id": 0, "name": "thing"}, {"id": 1, "name": "other"}]
    truth_file, result_file = tmp_path / "truth.json", tmp_path / "results.json"
    truth_file.write_text(
        json.dumps({"images": images, "annotations": annotations, "categories": categories})
    )
    result_file.write_text(json.dumps(results))
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(truth_file))
        evaluation = COCOeval(
            coco, coco.loadRes(str(result_file)), "bbox" if kind == "box" else "segm"
        )
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    ours = average_precision(there, claims, task=kind)
    names = ("AP", "AP50", "AP75", "AP_s", "AP_m", "AP_l")
    assert [ours[f"{kind}_{name}"] for name in names] == pytest.approx(
        evaluation.stats[:6].tolist()
    )
    assert 0.05 < ours[f"{kind}_AP"] < 0.95


@pytest.mark.parametrize(("kind", "points", "limit"), [("box", 101, 100), ("mask", 11, 4)])
def test_resampled_numbers_are_those_of_pycocotools_on_the_drawn_images(kind, points, limit):
    rng = np.random.default_rng(1)
    there, claims = random_scene(9, rng)
    crowds = [image._replace(crowd=rng.random(4) < 0.2) for image in there.instances]
    there = replace(there, instances=crowds)
    # Equal scores in several images, whose order decides.
    few = np.arange(7, dtype=np.float32) / 100
    claims = [claim._replace(scores=claim.scores.round(1) + few) for claim in claims]
    settings = {"task": kind, "recall_points": points, "max_detections": limit}
    drawn = resample_average_precision(there, claims, **settings)
    assert {len(values) for values in drawn.values()} == {1 + RESAMPLES}
    rows = next(resampled_rows(9)).tolist()
    for i, images in [(0, range(9)), *((1 + b, sorted(rows[b])) for b in range(0, RESAMPLES, 125))]:
        expected = average_precision(subset(there, images), [claims[j] for j in images], **settings)
        ours = {name: values[i] for name, values in drawn.items() if not np.isnan(values[i])}
        assert ours == pytest.approx(expected, abs=1e-12)
    assert len(drawn) > 4 and np.std(drawn[f"{kind}_AP"]) > 0.01


def test_a_full_mask_covers_the_pixels_whose_centers_its_box_holds():
    boxes = torch.tensor([[2.0, 3.0, 7.0, 5.0], [0.0, 0.0, 10.0, 8.0]])
    covered = paste_masks(torch.ones(2, 1, 28, 28), boxes, 8, 10) >= 0.5
    expected = torch.zeros(2, 8, 10, dtype=torch.bool)
    expected[0, 3:5, 2:7] = True
    expected[1] = True
    assert torch.equal(covered, expected)


def test_the_left_half_of_a_mask_becomes_the_left_half_of_its_box():
    mask = torch.zeros(1, 1, 28, 28)
    mask[..., :14] = 1
    covered = paste_masks(mask, torch.tensor([[2.0, 0.0, 8.0, 4.0]]), 4, 10) >= 0.5
    assert covered[0].any(dim=0).nonzero().flatten().tolist() == [2, 3, 4]


def test_answers_are_given_in_the_pixels_of_the_file():
    answer = {
        "boxes": torch.tensor([[10.0, 20.0, 30.0, 60.0]]),
        "labels": torch.tensor([1]),
        "scores": torch.tensor([0.5]),
        "masks": torch.ones(1, 1, 28, 28),
    }
    there = to_detections(answer, (50, 40), (100, 160))
    assert there.boxes.tolist() == [[2.5, 10.0, 7.5, 30.0]] and there.labels.tolist() == [0]
    assert there.masks[0]["size"] == [50, 40]


def test_an_image_in_which_nothing_was_found_has_no_masks():
    answer = {
        "boxes": torch.zeros(0, 4),
        "labels": torch.zeros(0, dtype=torch.int64),
        "scores": torch.zeros(0),
        "masks": torch.zeros(0, 1, 28, 28),
    }
    assert to_detections(answer, (5, 4), (10, 8)).masks == ()
