"""Run folders made by hand: a color per tile, so that a test can tell which one it sees."""

import json
import math
from pathlib import Path
from typing import Any

from PIL import Image

from selfsight.run_files.run_folder import Run

HOSTILE = (
    "<img src=x onerror=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
    "<!--<script>&quot;' {{script}} \u2028\u2029",
)
RECIPE = {
    "method": {"name": "moco", "temperature": 0.2, "queue_size": 512},
    "backbone": {"name": "resnet18"},
    "data": {"path": "shapes"},
    "epochs": 4,
    "batch_size": 32,
    "seed": 0,
    "views": [{"size": 32, "crop": [0.2, 1.0]}, {"size": 32, "blur": None}],
    "reasons": {"batch_size": "It fits.", "method.queue_size": "A tenth of the images."},
    "versions": {"torch": "2.11.0"},
}


def tile_color(index: int) -> tuple[int, int, int]:
    return (40 * (index % 6) + 20, 60 * (index // 6 % 4) + 20, 150)


def records(count: int, knn: bool = True) -> list[dict[str, Any]]:
    return [
        {
            "step": 10 * i,
            "epoch": i / 10,
            "loss": 6.0 - 3 * i / count,
            "lr": 0.1,
            "momentum": None,
            "images_per_second": 800.0,
            "data_wait": 0.01,
            "feature_std": 0.05,
            "effective_rank": 20.0,
            "chance_loss": math.log(513),
            "time": 2.0 * i,
            **({"online_knn": 0.3 + 0.4 * i / count} if knn and i % 5 == 4 else {}),
        }
        for i in range(count)
    ]


def _sheet(path: Path, tile: int, columns: int, count: int) -> None:
    sheet = Image.new("RGB", (tile * columns, tile * -(-count // columns)))
    for i in range(count):
        square = (i % columns * tile, i // columns * tile)
        sheet.paste(tile_color(i), (*square, square[0] + tile, square[1] + tile))
    path.parent.mkdir(exist_ok=True)
    sheet.save(path, quality=95)


def _images(run: Run, names: list[str], labels: list[str | None]) -> None:
    rows = [{"name": name} for name in names[:2]]
    titles = ["image", "view 1", "view 2"]
    run.write_image_json("views", {"tile": 32, "columns": 3, "titles": titles, "rows": rows})
    _sheet(run.images / "views.png", 32, 3, 6)
    # far wider than high: the width alone decides where a point lies
    points = [
        {"x": 10.0 * i, "y": float(i % 2), "label": label, "name": name}
        for i, (name, label) in enumerate(zip(names, labels, strict=True))
    ]
    layout = {"tile": 16, "columns": 4, "method": "t-SNE", "points": points}
    run.write_image_json("map", layout)
    _sheet(run.images / "map.jpg", 16, 4, len(points))
    near = [
        {"name": n, "label": label, "similarity": 0.9 - 0.1 * i}
        for i, (n, label) in enumerate(zip(names, labels, strict=True))
    ]
    row = {"name": names[0], "label": labels[0], "neighbors": near[1:], "untrained": near[:0:-1]}
    columns = 2 * len(names) - 1
    run.write_image_json("neighbors", {"tile": 16, "columns": columns, "rows": [row]})
    _sheet(run.images / "neighbors.jpg", 16, columns, columns)


def analyze(run: Run) -> None:
    """What `--protocol analysis` leaves for the figures."""
    bins = {"edges": [0.0, 0.25, 0.5, 0.75, 1.0], "counts": [0, 3, 5, 0]}
    part = {"eigenvalues": [4.0, 2.0, 0.5, 0.0], "similarity": bins, "variance": bins}
    rows = [
        {"num_negatives": n, "alpha": alpha, "mean": 2.0, "std": 0.5, "bound": 9.0}
        for n in (16, 64)
        for alpha in (None, 65536.0)
    ]
    run.write_image_json("analysis", {"backbone": part, "projector": part, "gradients": rows})


def knn_result(names: list[str]) -> dict[str, Any]:
    """Classes of ten images, one of which is mistaken for the next class."""
    confusion = [
        [9 * (i == j) + (j == (i + 1) % len(names)) for j in range(len(names))]
        for i in range(len(names))
    ]
    ends = {"accuracy_low": 0.55, "accuracy_high": 0.85, "n": 10}
    return {
        **{"accuracy": 0.7, "accuracy_low": 0.6, "accuracy_high": 0.8},
        **{"untrained_accuracy": 0.3, "balanced_accuracy": 0.65},
        "per_class": {name: {"accuracy": 0.9 - 0.1 * i, **ends} for i, name in enumerate(names)},
        "class_names": names,
        "confusion": confusion,
        "differences": {
            "untrained": {"accuracy": {"difference": 0.4, "low": 0.3, "high": 0.5, "n": 20}}
        },
    }


def make_run(
    path: Path,
    names: list[str] | None = None,
    labels: list[str | None] | None = None,
    log: list[dict[str, Any]] | None = None,
) -> Run:
    """A finished run; `names` and `labels` belong to the images of the map."""
    run = Run(path)
    run.path.mkdir()
    run.recipe_path.write_text(json.dumps(RECIPE))
    lines = records(20) if log is None else log
    run.log_path.write_text("".join(json.dumps(record) + "\n" for record in lines))
    names = names or [f"photos/{i}.jpg" for i in range(6)]
    labels = labels or ["cat", "dog", "cat", "dog", "cat", "dog"]
    _images(run, names, labels)
    if any(label is not None for label in labels):
        names = sorted({str(label) for label in labels})
        run.write_result("knn", {**knn_result(names), "settings": {}})
        online = {"accuracy": 0.75, "untrained_accuracy": 0.35, "settings": {}}
        run.write_result("online_knn", online)
        run.write_result("linear", {"accuracy": 0.8, "untrained_accuracy": 0.4})
        run.write_result("baselines", {"pixels": 0.2, "color_histogram": 0.15, "chance": 0.1})
    ends = {"trained_low": 0.88, "trained_high": 0.92, "untrained_low": 0.3, "untrained_high": 0.5}
    pair = {"trained": 0.9, "untrained": 0.4, **ends}
    clear, weak = (
        pair | {"difference": {"difference": 0.5, "low": low, "high": 0.6, "n": 128}}
        for low in (0.4, -0.1)
    )
    free = {"retrieval": clear, "alignment": clear, "effective_rank": weak}
    run.write_result("label_free", {**free, "settings": {"images": 128}})
    evidence = [{"name": "Loss", "value": 3.0, "expected": "below 6.24", "meaning": "it fell"}]
    said = {"verdict": "learning", "sentence": "It is learning.", "evidence": evidence}
    run.write_result("verdict", said)
    return run
