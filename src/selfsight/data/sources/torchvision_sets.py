"""Data sets that torchvision knows by name and that lie on this machine already."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from selfsight.data.source import UNKNOWN, Source
from selfsight.errors import UserError, suggest

PREFIX = "torchvision:"
ROOT = "data"
TESTS = ("test", "val", "valid", "validation")


def open_vision(word: str, *, split: str | None, labels: bool) -> Source:
    """`torchvision:NAME` or `torchvision:NAME@ROOT`; nothing is downloaded."""
    name, root = _parts(word)
    settings: dict[str, Any] = _settings(name, root)
    if "train" in settings:
        settings["train"] = split != "test"
    tries = [settings]
    if "split" in settings:
        words = TESTS if split == "test" else ("train",)
        tries = [settings | {"split": w} for w in words]
    data = _made(name, root, tries)
    targets = next(
        (t for a in ("targets", "labels", "_labels") if (t := _attr(data, a)) is not None), None
    )
    if targets is None and labels:
        targets = [data[i][1] for i in range(len(data))]
    numbers = None if targets is None else _numbers(targets)
    class_names = () if numbers is None else _class_names(data, numbers)
    return Source(
        name=word,
        names=[f"{name}#{i}" for i in range(len(data))],
        labels=numbers,
        class_names=class_names,
        read=lambda i: _pixels(data[i][0]),
        stamp=lambda: f"{name} {root.resolve()} {split} {len(data)}",
    )


def vision_splits(word: str) -> tuple[str, ...]:
    """Whether the data set is divided into training and test images."""
    settings = _settings(*_parts(word))
    return ("train", "test") if {"train", "split"} & set(settings) else ()


def _parts(word: str) -> tuple[str, Path]:
    name, _, root = word.removeprefix(PREFIX).partition("@")
    return name, Path(root or ROOT).expanduser()


def _settings(name: str, root: Path) -> dict[str, Any]:
    """Those of root, train and split that the data set takes."""
    from torchvision import datasets

    known = [n for n in datasets.__all__ if inspect.isclass(getattr(datasets, n))]
    if name not in known:
        by_lower = {n.lower(): n for n in known}
        near = suggest(name, by_lower)
        for lower, proper in by_lower.items():
            near = near.replace(f'"{lower}"', f'"{proper}"')
        raise UserError(f'torchvision has no data set "{name}".{near}')
    takes = inspect.signature(getattr(datasets, name)).parameters
    values = {"root": str(root), "train": True, "split": "train"}
    return {key: value for key, value in values.items() if key in takes}


def _made(name: str, root: Path, tries: list[dict[str, Any]]) -> Any:
    """The first of several spellings that the data set accepts."""
    from torchvision import datasets

    error: Exception | None = None
    for settings in tries:
        try:
            return getattr(datasets, name)(**settings)
        except ValueError as why:  # how data sets refuse the name of a split
            error = why
        except (RuntimeError, OSError) as why:
            raise UserError(_absent(name, root, settings)) from why
        except (TypeError, ImportError) as why:
            raise UserError(f"torchvision's {name} cannot be opened by name alone: {why}") from why
    raise UserError(f"torchvision's {name} refused every name for the split: {error}") from error


def _absent(name: str, root: Path, settings: dict[str, Any]) -> str:
    more = "".join(f", {k}={v!r}" for k, v in settings.items() if k != "root")
    line = f"from torchvision.datasets import {name}; {name}({str(root)!r}{more}, download=True)"
    return (
        f"torchvision's {name} is not under {root}, and nothing is downloaded unasked. Download it "
        f'with\n  python -c "{line}"\nor say where it is: {PREFIX}{name}@FOLDER'
    )


def _attr(data: Any, name: str) -> Any:
    value: Any = getattr(data, name, None)
    return value if hasattr(value, "__len__") and len(value) == len(data) else None


def _numbers(targets: Any) -> np.ndarray | None:
    values = np.array([UNKNOWN if t is None else t for t in targets])
    return values.astype(np.int64) if values.ndim == 1 and values.dtype.kind in "iu" else None


def _class_names(data: Any, numbers: np.ndarray) -> tuple[str, ...]:
    names = getattr(data, "classes", None)
    count = int(numbers.max(initial=-1)) + 1
    if isinstance(names, (list, tuple)) and len(names) >= count:
        return tuple(n[0] if isinstance(n, tuple) else str(n) for n in names)
    return tuple(map(str, range(count)))


def _pixels(image: Any) -> np.ndarray:
    if not isinstance(image, Image.Image):
        raise UserError(f"The data set gives {type(image).__name__}, not images.")
    gray = image.mode in ("1", "L")
    pixels = np.array(image.convert("L" if gray else "RGB"))
    return pixels[..., None] if gray else pixels
