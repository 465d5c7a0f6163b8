"""Gray images with colored rectangles on them: red ones, green ones, perhaps with masks."""

import io

import numpy as np
from PIL import Image

from selfsight.evals.detection.detector_settings import DetectorSettings
from selfsight.evals.detection.instances import DetectionDataset, Instances, encode_mask

COLORS = {"red": (230, 40, 40), "green": (40, 210, 60)}

TINY = DetectorSettings(
    neck="fpn",
    new_norm=True,
    fpn_dim=32,
    head_dim=64,
    mask_dim=16,
    anchors=(16, 24, 32, 48, 64),
    rpn_train=(200, 100),
    rpn_test=(100, 50),
    anchors_sampled=64,
    boxes_sampled=32,
    iterations=4,
    milestones=(),
    warmup=0,
    batch_size=4,
    short_sides=(64,),
    test_short_side=64,
    longest=96,
    precise_bn=2,
)


def png(pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def image(rng, side=64, most=2):
    """Pixels, and the color and box of each rectangle; they do not overlap."""
    pixels = rng.integers(90, 130, (side, side, 3)).astype(np.uint8)
    things = []
    for half in rng.permutation(2)[: rng.integers(1, most + 1)]:
        w, h = rng.integers(14, 28, 2)
        x = int(half * side // 2 + rng.integers(0, side // 2 - w + 1))
        y = int(rng.integers(0, side - h))
        name = list(COLORS)[rng.integers(2)]
        pixels[y : y + h, x : x + w] = COLORS[name]
        things.append((name, (x, y, x + int(w), y + int(h))))
    return pixels, things


def instances(things, side=64, *, masks=True, crowd=()) -> Instances:
    boxes = np.array([box for _, box in things], np.float64).reshape(-1, 4)
    layers = []
    for left, top, right, bottom in boxes.astype(int):
        layer = np.zeros((side, side), bool)
        layer[top:bottom, left:right] = True
        layers.append(encode_mask(layer))
    return Instances(
        boxes,
        np.array([list(COLORS).index(name) for name, _ in things], np.int64),
        np.array([i in crowd for i in range(len(things))], bool),
        np.prod(boxes[:, 2:] - boxes[:, :2], axis=1),
        tuple(layers) if masks else None,
    )


def rectangles(n=16, *, seed=0, masks=True) -> DetectionDataset:
    rng = np.random.default_rng(seed)
    made = [image(rng) for _ in range(n)]
    files = [png(pixels) for pixels, _ in made]
    return DetectionDataset(
        name="rectangles",
        names=[f"{i}.png" for i in range(n)],
        sizes=np.full((n, 2), 64, np.int64),
        instances=[instances(things, masks=masks) for _, things in made],
        class_names=tuple(COLORS),
        read=files.__getitem__,
    )
