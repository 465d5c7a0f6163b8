"""Files that run code when they are read carelessly: they leave a mark that tests look for."""

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch


class Payload:
    """An object whose pickle creates a folder when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def _raw(path: Path, content: Any) -> None:
    path.write_bytes(pickle.dumps(content, protocol=2))


def _legacy(path: Path, content: Any) -> None:
    torch.save(content, path, _use_new_zipfile_serialization=False)


def _object_array(path: Path, content: Any) -> None:
    with path.open("wb") as file:  # with a name, numpy would append .npy
        np.save(file, np.array([content], dtype=object), allow_pickle=True)


def _zip_of_pickles(path: Path, content: Any) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("archive/data.pkl", "archive/constants.pkl"):
            archive.writestr(name, pickle.dumps(content, protocol=2))
        archive.writestr("archive/version", "3\n")


WRITERS: dict[str, Callable[[Path, Any], Any]] = {
    "torch": lambda path, content: torch.save(content, path),
    "legacy torch": _legacy,
    "pickle": _raw,
    "object array": _object_array,
    "TorchScript": _zip_of_pickles,
}
WEIGHTS = {"conv1.weight": torch.ones(4, 3, 3, 3), "fc.bias": torch.ones(2)}
CONTENTS: dict[str, Callable[[Path], Any]] = {
    "alone": Payload,
    "among weights": lambda mark: {**WEIGHTS, "epoch": Payload(mark)},
    "below": lambda mark: {"state_dict": WEIGHTS, "args": {"lr": [Payload(mark)]}},
}
