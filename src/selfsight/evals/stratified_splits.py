"""Seeded, stratified splits of a labeled set, saved in a file so that they never change."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from selfsight import rng
from selfsight.check_settings import RESTORE, check_fields
from selfsight.errors import UserError, list_first
from selfsight.evals.eval_images import Images
from selfsight.run_files.json_files import read_object, write_json

FOLDS = 5
TEST_SHARE = 0.2
SPLIT = {"train": list[int], "test": list[int], "notes": list[str]}  # in its file


class Split(NamedTuple):
    """Sorted indices of the training and the test images."""

    train: Int64[Tensor, " a"]
    test: Int64[Tensor, " b"]
    notes: tuple[str, ...] = ()


def stratified(
    labels: Int64[Tensor, " n"],
    *,
    test_share: float = TEST_SHARE,
    seed: int = 0,
    class_names: Sequence[str] = (),
) -> Split:
    """Put the same share of every class into the test set, at least one image on each side.

    If a class has a single image, it goes to the training set, and a note says so.
    """
    labels = labels.cpu()
    u = rng.uniform(rng.key(seed, "split"), torch.arange(len(labels)), 1)[:, 0]
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    single = []
    for label in labels.unique().tolist():
        members = (labels == label).nonzero()[:, 0]
        if len(members) == 1:
            single.append(class_names[label] if class_names else str(label))
            continue
        count = min(max(round(test_share * len(members)), 1), len(members) - 1)
        is_test[members[u[members].argsort(stable=True)[:count]]] = True
    if not is_test.any():
        raise UserError(
            f"None of the {len(labels)} labeled images shares its class with another, so there "
            "is nothing to score. Give two or more images of a class, or evaluate without labels."
        )
    return Split((~is_test).nonzero()[:, 0], is_test.nonzero()[:, 0], _notes(single))


def assign_folds(y: Int64[Tensor, " n"], *, seed: int) -> Int64[Tensor, " n"]:
    """Assign each image to one of FOLDS folds; every class is spread evenly over them."""
    u = rng.uniform(rng.key(seed, "folds"), torch.arange(len(y)), 1)[:, 0]
    order = u.argsort(stable=True)
    order = order[y.cpu()[order].argsort(stable=True)]  # by class, in random order within
    return torch.empty_like(order).scatter(0, order, torch.arange(len(y)) % FOLDS)


def load_or_create_split(folder: Path, images: Images, *, seed: int = 0) -> Split:
    """Load the split of these images from the folder, or create and save it.

    The file name is a hash of the images' names and labels: another set has another file.
    """
    if images.labels is None:
        raise UserError(
            "These images have no labels, so they cannot be split by class. Put each class into "
            "its own sub-folder, or evaluate without labels."
        )
    content = repr((list(images.names), images.labels.tolist(), TEST_SHARE, seed))
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    path = folder / f"split-{digest}.json"
    saved = read_object(path)
    if saved is None:
        split = stratified(images.labels, seed=seed, class_names=images.class_names)
        saved = {
            "seed": seed,
            "test_share": TEST_SHARE,
            "images": len(images),
            "notes": list(split.notes),
            "train": split.train.tolist(),
            "test": split.test.tolist(),
        }
        write_json(path, saved)
    check_fields(saved, SPLIT, path, required=tuple(SPLIT))
    indices = saved["train"] + saved["test"]
    for name in ("train", "test"):
        if not saved[name]:
            raise UserError(f"{path} is damaged: {name} holds no image. {RESTORE}")
    if sorted(set(indices)) != sorted(indices) or not set(indices) <= set(range(len(images))):
        raise UserError(f"{path} is damaged: an image is in it twice, or does not exist. {RESTORE}")
    return Split(torch.tensor(saved["train"]), torch.tensor(saved["test"]), tuple(saved["notes"]))


def _notes(single: list[str]) -> tuple[str, ...]:
    """A sentence on the classes that could not be split, if there are any."""
    if not single:
        return ()
    first = list_first([f'"{name}"' for name in single])
    classes, have = ("class", "has") if len(single) == 1 else ("classes", "have")
    return (
        f"{len(single)} {classes} ({first}) {have} a single image, which is in the training set.",
    )
