"""Data sets of torchvision by name, read from a local folder."""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from selfsight.data.data_fingerprint import hash_sample
from selfsight.data.sources.source import UNLABELED, Source
from selfsight.errors import UserError, suggest

PREFIX = "torchvision:"
DEFAULT_ROOT = "data"
TEST_SPLITS = ("test", "val", "valid", "validation")
UNSAFE = {"LSUN": "a pickle from its folder"}
LABEL_ATTRIBUTES = ("targets", "labels", "_labels")


class Spec(NamedTuple):
    """The parts of `torchvision:NAME@ROOT:SPLIT`; root and split may be left out."""

    name: str
    root: Path
    split: str | None


def open_vision(spec: str, *, split: str | None, labels: bool) -> Source:
    """Open `torchvision:NAME`, `NAME@ROOT` or `NAME@ROOT:SPLIT`; nothing is downloaded.

    The split of the spec is any that torchvision knows for this data set.
    """
    name, root, named_split = parsed = _parse_spec(spec)
    if named_split is not None:
        attempts = [_arguments_of_split(parsed)]
    else:
        attempts = _arguments_of_side(name, root, is_test=split == "test")
    data = _construct(name, root, attempts)
    targets = next((t for a in LABEL_ATTRIBUTES if (t := _per_image(data, a)) is not None), None)
    if targets is None and labels:
        targets = [data[i][1] for i in range(len(data))]
    numbers = None if targets is None else _to_labels(targets)
    class_names = () if numbers is None else _class_names(data, numbers)
    source = Source(
        name=spec,
        names=[f"{name}#{i}" for i in range(len(data))],
        labels=numbers,
        class_names=class_names,
        read=lambda i: _to_pixels(data[i][0]),
    )
    place = f"{name} {root.resolve()} {named_split or split} {len(data)}"
    # Other images may have come in the place of these.
    return replace(source, fingerprint=lambda: f"{place} {hash_sample(source)}")


def list_vision_splits(spec: str) -> tuple[str, ...]:
    """("train", "test") if the data set has splits and the spec names none, else ()."""
    name, root, split = _parse_spec(spec)
    arguments = _constructor_arguments(name, root)
    return ("train", "test") if split is None and {"train", "split"} & set(arguments) else ()


def _parse_spec(spec: str) -> Spec:
    place, colon, split = spec.removeprefix(PREFIX).rpartition(":")
    if not colon or "/" in split or "\\" in split:  # the colon of C:\data
        place, split = spec.removeprefix(PREFIX), ""
    name, _, root = place.partition("@")
    return Spec(name, Path(root or DEFAULT_ROOT).expanduser(), split or None)


def _arguments_of_split(spec: Spec) -> dict[str, Any]:
    """Arguments of the constructor for the split that the spec names."""
    arguments = _constructor_arguments(spec.name, spec.root)
    if "split" in arguments:
        return arguments | {"split": spec.split}
    if "train" not in arguments:
        raise UserError(
            f'torchvision\'s {spec.name} has no splits, so it has no split "{spec.split}". Leave '
            f'":{spec.split}" out.'
        )
    if spec.split not in ("train", "test"):
        raise UserError(
            f'torchvision\'s {spec.name} has no split "{spec.split}"; it has train and test.'
        )
    return arguments | {"train": spec.split == "train"}


def _arguments_of_side(name: str, root: Path, *, is_test: bool) -> list[dict[str, Any]]:
    """Arguments to try for the training images, or for the test images."""
    arguments = _constructor_arguments(name, root)
    if "train" in arguments:
        arguments["train"] = not is_test
    if "split" not in arguments:
        return [arguments]
    return [arguments | {"split": s} for s in (TEST_SPLITS if is_test else ("train",))]


def _constructor_arguments(name: str, root: Path) -> dict[str, Any]:
    """Those of root, train, split and download that the data set's constructor has."""
    from torchvision import datasets

    known = [n for n in datasets.__all__ if inspect.isclass(getattr(datasets, n))]
    if name not in known:
        raise UserError(f'torchvision has no data set "{name}".{suggest(name, known)}')
    parameters = inspect.signature(getattr(datasets, name)).parameters
    if name in UNSAFE:
        raise UserError(
            f"torchvision's {name} reads {UNSAFE[name]}, which could run code that it contains. "
            "Export its images to a folder, tar shards or Parquet."
        )
    # Two sets download by default.
    values = {"root": str(root), "train": True, "split": "train", "download": False}
    return {key: value for key, value in values.items() if key in parameters}


def _construct(name: str, root: Path, attempts: list[dict[str, Any]]) -> Any:
    """Construct the data set with the first arguments that it accepts."""
    from torchvision import datasets

    last_error: Exception | None = None
    for arguments in attempts:
        try:
            return getattr(datasets, name)(**arguments)
        except ValueError as error:  # raised for an unknown split
            last_error = error
        except (RuntimeError, OSError) as error:
            raise UserError(_describe_absent(name, root, arguments)) from error
        except (TypeError, ImportError) as error:
            raise UserError(
                f"torchvision's {name} cannot be opened by name alone: {error}"
            ) from error
    if "split" not in attempts[0]:
        raise UserError(f"torchvision's {name} cannot be opened: {last_error}") from last_error
    tried = " or ".join(f'"{arguments["split"]}"' for arguments in attempts)
    raise UserError(
        f"torchvision's {name} has no split {tried}: {last_error} Name one after the folder: "
        f"{PREFIX}{name}@{root}:SPLIT"
    ) from last_error


def _describe_absent(name: str, root: Path, arguments: dict[str, Any]) -> str:
    more = "".join(f", {k}={arguments[k]!r}" for k in ("train", "split") if k in arguments)
    line = f"from torchvision.datasets import {name}; {name}({str(root)!r}{more}, download=True)"
    return (
        f"torchvision's {name} is not in {root}, and selfsight does not download it. Download it "
        f'with: python -c "{line}" or give its folder: {PREFIX}{name}@FOLDER'
    )


def _per_image(data: Any, attribute: str) -> Any:
    """The attribute, if it has a value for each image."""
    value: Any = getattr(data, attribute, None)
    return value if hasattr(value, "__len__") and len(value) == len(data) else None


def _to_labels(targets: Any) -> np.ndarray | None:
    values = np.array([UNLABELED if t is None else t for t in targets])
    return values.astype(np.int64) if values.ndim == 1 and values.dtype.kind in "iu" else None


def _class_names(data: Any, labels: np.ndarray) -> tuple[str, ...]:
    names = getattr(data, "classes", None)
    count = int(labels.max(initial=-1)) + 1
    if isinstance(names, (list, tuple)) and len(names) >= count:
        return tuple(n[0] if isinstance(n, tuple) else str(n) for n in names)
    return tuple(map(str, range(count)))


def _to_pixels(image: Any) -> np.ndarray:
    if not isinstance(image, Image.Image):
        raise UserError(f"The data set gives {type(image).__name__}, not images.")
    gray = image.mode in ("1", "L")
    pixels = np.array(image.convert("L" if gray else "RGB"))
    return pixels[..., None] if gray else pixels
