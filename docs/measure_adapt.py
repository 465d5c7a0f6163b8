"""Measure `selfsight adapt` on five small domains: is its choice the best in hindsight?

    python -m docs.measure_adapt DATA --work FOLDER [--init NAME] [--minutes M] [--size PIXELS]

DATA is a folder with imagenette160-*.parquet, pets112-*.parquet and bccd-coco.tar; two of the sets
come with the package. Without --init, an encoder is pretrained on Imagenette first, in the place of
a public one. Each set has training images, of which some are labeled for `adapt` to decide by, and
a test set that it never sees. The best in hindsight is by a linear probe with the labels of all
training images.
"""

import argparse
import io
import json
import tarfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from selfsight import api
from selfsight.adaptation import try_arms
from selfsight.adaptation.compare_arms import ArmResult, choose, compare
from selfsight.adaptation.measure_encoders import measure_label_free, measure_labeled
from selfsight.data import open_source
from selfsight.data.decoders.decode_image import decode
from selfsight.device import resolve_device
from selfsight.encoders.load_encoder import load_encoder
from selfsight.evals.eval_images import EvalImages
from selfsight.evals.labeled_data import LabeledData
from selfsight.options.encoder_options import AdaptOptions
from selfsight.recipe import eval_transform
from selfsight.run_files.json_files import write_json
from selfsight.run_files.run_folder import Run
from selfsight.terminal.console import build_table, open_console
from selfsight.train.init_weights import build_method

Labeled = Iterator[tuple[str, np.ndarray]]  # class and HWC pixels
LIMIT = 3000  # images of a split
CELLS = {"train": ("train",), "test": ("val", "test")}  # of the archive


def read_source(data: str, split: str | None = None, every: tuple[int, int] = (0, 1)) -> Labeled:
    """Read labeled images; `every` = (first, step) takes a part of them."""
    source = open_source(data, labels=True, split=split)
    assert source.labels is not None
    for i in range(every[0], len(source), every[1]):
        content = source.read(i)
        pixels = content if isinstance(content, np.ndarray) else decode(content, store_size=None)
        yield source.class_names[int(source.labels[i])], pixels


def read_cells(archive: Path, split: str) -> Labeled:
    """Cut out the boxes of blood cells; of the red ones every fourth."""
    with tarfile.open(archive) as files:
        for part in CELLS[split]:
            annotations = json.load(files.extractfile(f"annotations/instances_{part}.json"))  # type: ignore[arg-type]
            names = {c["id"]: c["name"] for c in annotations["categories"]}
            paths = {image["id"]: image["file_name"] for image in annotations["images"]}
            opened: dict[str, Image.Image] = {}
            for number, box in enumerate(annotations["annotations"]):
                if names[box["category_id"]] == "RBC" and number % 4:
                    continue
                path = paths[box["image_id"]]
                if path not in opened:
                    content = files.extractfile(path)
                    assert content is not None
                    opened = {path: Image.open(io.BytesIO(content.read())).convert("RGB")}
                x, y, w, h = box["bbox"]
                if min(w, h) >= 8:
                    yield (
                        names[box["category_id"]],
                        np.array(opened[path].crop((x, y, x + w, y + h))),
                    )


def list_sets(data: Path) -> dict[str, Callable[[str], Labeled]]:
    """The five sets: a function from split to labeled images for each."""
    val = str(data / "imagenette160-val.parquet")
    return {
        "pets": lambda split: read_source(str(data / f"pets112-{split}.parquet")),
        "cells": partial(read_cells, data / "bccd-coco.tar"),
        "shapes": lambda split: read_source("shapes", split),
        "digits": lambda split: read_source("digits", split),
        # The domain of the encoder itself: images that it was not trained on.
        "same": lambda split: read_source(val, every=(0 if split == "train" else 1, 2)),
    }


def write_set(read: Callable[[str], Labeled], folder: Path, *, size: int, labels: int) -> None:
    """Write folders train, few (a part of train) and test, with a sub-folder for each class."""
    if (folder / "test").exists():
        return
    generator = np.random.Generator(np.random.Philox(key=0))
    for split in ("train", "test"):
        rows = list(read(split))
        order = generator.permutation(len(rows))[:LIMIT].tolist()
        classes = {name for name, _ in rows}
        wanted = {name: max(2, labels // len(classes)) for name in classes}
        for number in order:
            name, pixels = rows[number]
            image = Image.fromarray(pixels.squeeze())
            image.thumbnail((4 * size, size) if image.width > image.height else (size, 4 * size))
            targets = [split]
            if split == "train" and wanted[name] > 0:
                wanted[name] -= 1
                targets.append("few")
            for target in targets:
                path = folder / f"{target}.part" / name / f"{number:05d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                image.save(path)
    for target in ("few", "train", "test"):
        (folder / f"{target}.part").rename(folder / target)


def measure_set(folder: Path, options: AdaptOptions) -> dict[str, Any]:
    """Run the arms of `adapt`; return its choices with and without labels, and the truth."""
    began, device = time.monotonic(), resolve_device(options.device)
    out = folder / "adapt"
    out.mkdir(exist_ok=True)
    trial = try_arms.prepare_trial(
        str(folder / "train"), options, out, device, open_console(stderr=True), began
    )
    arms = try_arms.try_arms(trial)
    choice = choose(arms, images=trial.measured_on)
    transform = eval_transform(trial.recipe)
    train, test = (
        EvalImages(open_source(folder / split, labels=True), transform, device)
        for split in ("train", "test")
    )
    labeled = LabeledData(train=train, test=test, transform=transform)
    truth, blind = [], []
    for arm in arms:
        if not arm.scores:
            continue
        if arm.name == "frozen":
            method = build_method(trial.recipe, device, start=trial.start.weights)
            network: torch.nn.Module = method.student.backbone
        else:
            network = load_encoder(str(Run(out / arm.name).path), device).network
        truth.append(ArmResult(name=arm.name, scores=measure_labeled(network, labeled, seed=0)))
        scores = measure_label_free(network, trial.images, trial.recipe.views, seed=0)
        blind.append(ArmResult(name=arm.name, scores=scores))
    without_labels = choose(blind, images="two views")
    accuracies = {arm.name: 100 * arm.interval("linear").value for arm in truth}  # type: ignore[union-attr]
    chosen, frozen = next(a for a in truth if a.name == choice.name), truth[0]
    harm = None if chosen is frozen else compare(chosen, frozen, "linear")
    return {
        "set": folder.name,
        "choice": choice.name,
        "sentence": choice.sentence,
        "few_labels": {a.name: 100 * a.interval("linear").value for a in arms if a.scores},  # type: ignore[union-attr]
        "epochs": {a.name: a.facts.get("epochs") for a in arms if a.scores},
        "truth": accuracies,
        "regret": max(accuracies.values()) - accuracies[choice.name],
        "harmful": harm is not None and harm.high < 0,
        "choice_without_labels": without_labels.name,
        "regret_without_labels": max(accuracies.values()) - accuracies[without_labels.name],
        "sentence_without_labels": without_labels.sentence,
        "seconds": time.monotonic() - began,
    }


def main() -> None:
    """Write the sets, pretrain the encoder, measure each set that has no result yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--init", help="encoder to start from; if not given, one is pretrained")
    parser.add_argument("--minutes", type=float, default=10.0, help="of each set")
    parser.add_argument("--size", type=int, default=96, help="short side of the images")
    parser.add_argument("--labels", type=int, default=400, help="labeled images to decide by")
    parser.add_argument("--epochs", type=int, default=100, help="of pretraining on Imagenette")
    parser.add_argument("--sets", nargs="*", default=())
    parser.add_argument("--device", default="auto")
    asked, settings = parser.parse_known_args()
    init = asked.init
    if init is None:
        out = asked.work / "start"
        api.pretrain(
            asked.data / "imagenette160-train.parquet",
            epochs=asked.epochs,
            out=out,
            resume=True,
            device=asked.device,
            settings=settings,
        )
        init = str(out)
    rows = []
    for name, read in list_sets(asked.data).items():
        if asked.sets and name not in asked.sets:
            continue
        folder = asked.work / name
        result = folder / "result.json"
        if not result.exists():
            write_set(read, folder, size=asked.size, labels=asked.labels)
            options = AdaptOptions(
                init=init, minutes=asked.minutes, labeled=folder / "few", device=asked.device
            )
            write_json(result, measure_set(folder, options))
        rows.append(json.loads(result.read_text()))
    print_rows(rows)


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Print the table, and how many choices are within a point of the best in hindsight."""
    table = [
        {
            "set": row["set"],
            **{name: f"{value:.1f}" for name, value in row["truth"].items()},
            "choice": row["choice"],
            "regret": f"{row['regret']:.1f}",
            "harmful": row["harmful"],
            "without labels": row["choice_without_labels"],
            "its regret": f"{row['regret_without_labels']:.1f}",
        }
        for row in rows
    ]
    console = open_console()
    console.print(build_table(table, title="linear accuracy on the test sets, %"))
    close = sum(row["regret"] <= 1 for row in rows)
    blind = sum(row["regret_without_labels"] <= 1 for row in rows)
    console.print(
        f"Within one point of the best in hindsight: {close} of {len(rows)} with labels, {blind} "
        f"without. Harmful choices: {sum(row['harmful'] for row in rows)}."
    )


if __name__ == "__main__":
    main()
