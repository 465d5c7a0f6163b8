"""Which files or sub-folders of a data set are its train and test splits."""

import re
from pathlib import Path

from selfsight.data.sources.remote_files import File
from selfsight.errors import UserError

SPLITS = ("train", "test")
TRAIN_NAMES = ("train", "training")
TEST_NAMES = ("val", "valid", "validation", "test", "testing")


def normalize_split(spec: str, split: str | None) -> str:
    """ "train" or "test"; "train" if no split is given."""
    if split is None or split in TRAIN_NAMES:
        return "train"
    if split in TEST_NAMES:
        return "test"
    raise UserError(f'{spec} has no split "{split}"; it has train and test.')


def find_split_folders(path: Path) -> dict[str, Path]:
    """The folders of the two splits, if both exist."""
    folders = {name: path / name for name in (*TRAIN_NAMES, *TEST_NAMES) if (path / name).is_dir()}
    train = next((folders[n] for n in TRAIN_NAMES if n in folders), None)
    test = next((folders[n] for n in TEST_NAMES if n in folders), None)
    return {"train": train, "test": test} if train and test else {}


def splits_by_name(files: list[File]) -> dict[str, list[File]]:
    """Files by the split that their path names, if both splits occur."""
    by_split: dict[str, list[File]] = {"train": [], "test": []}
    for file in files:
        words = re.split(r"[-_./\\]", "/".join(Path(file.path).parts[-2:]).lower())
        if set(words) & set(TRAIN_NAMES):
            by_split["train"].append(file)
        elif set(words) & set(TEST_NAMES):
            by_split["test"].append(file)
    return by_split if all(by_split.values()) else {}
