"""The one word DATA: a built-in set, a folder, a list, Parquet, or a torchvision data set."""

import glob
import re
from pathlib import Path

from sightline.data import digits, shapes
from sightline.data.folder import files_under, is_picture, open_files, open_folder, open_list
from sightline.data.source import Source, keep_classes, settled
from sightline.data.vision import PREFIX, open_vision, vision_splits
from sightline.errors import UserError, nearest

BUILT_IN = {"shapes": shapes.built_in, "digits": digits.built_in}
SPLITS = ("train", "test")
TRAIN = ("train", "training")
TEST = ("val", "valid", "validation", "test", "testing")


def open_source(
    data: str | Path,
    *,
    split: str | None = None,
    labels: bool = False,
    classes: str | Path | None = None,
) -> Source:
    """What the word DATA means; where it is divided and no split is named, its training part.

    Classes that cost nothing (built-in, list, Parquet, torchvision) always come along; those of a
    folder are its sub-folders, and only if `labels` or `classes` asks for them.
    """
    word = str(data)
    source = _opened(word, split, labels or classes is not None)
    if classes is not None:
        source = keep_classes(source, Path(classes))
    source = settled(source, needed=labels)
    if labels and source.labels is None:
        raise UserError(
            f"{word} has no labels. Measuring with labels needs a class for each picture: "
            "sub-folders, a label after a tab in a list, or a label column in Parquet."
        )
    return source


def splits_of(data: str | Path) -> tuple[str, ...]:
    """("train", "test") where the data are divided so, else nothing."""
    word, path = str(data), Path(data).expanduser()
    if word in BUILT_IN:
        return SPLITS
    if word.startswith(PREFIX):
        return vision_splits(word)
    if not path.is_dir():
        return ()
    divided = _folder_splits(path) or _file_splits(_parquet(path, files_under(path)))
    return SPLITS if divided else ()


def _opened(word: str, split: str | None, labels: bool) -> Source:
    if word in BUILT_IN:
        return _built_in(word, _known(word, split))
    if word.startswith(PREFIX):
        return open_vision(word, split=_known(word, split), labels=labels)
    path = Path(word).expanduser()
    if path.is_dir():
        return _from_folder(path, word, split, labels)
    if split is not None:
        raise UserError(f'{word} is not divided into splits, so it has no "{split}".')
    if path.is_file():
        return _from_file(path, word)
    if glob.has_magic(word):
        return _from_pattern(word)
    raise UserError(_missing(word, path))


def _built_in(name: str, split: str) -> Source:
    names, labels, class_names, read = BUILT_IN[name](split)
    return Source(name=name, names=names, labels=labels, class_names=class_names, read=read)


def _known(word: str, split: str | None) -> str:
    known = "test" if split in TEST else "train" if split is None or split in TRAIN else None
    if known is None:
        raise UserError(f'{word} has no split "{split}"; it has train and test.')
    return known


def _from_folder(path: Path, word: str, split: str | None, labels: bool) -> Source:
    folders = _folder_splits(path)
    named = bool(split) and bool(folders) and (path / str(split)).is_dir()
    inner = path / str(split) if named else folders[_known(word, split)] if folders else path
    files = files_under(inner)
    parquet = _parquet(inner, files)
    if not parquet and (folders or split is None):
        return open_folder(inner, files, name=word, labels=labels)
    divided = {} if folders else _file_splits(parquet)
    if split is not None and not folders and not divided:
        raise UserError(
            f'{word} has no split "{split}": it would need the folders {path}/train and '
            f"{path}/test, or Parquet files with these words in their names."
        )
    from sightline.data.parquet import open_parquet

    return open_parquet(divided[_known(word, split)] if divided else parquet, word)


def _from_file(path: Path, word: str) -> Source:
    kind = path.suffix.lower()
    if kind == ".parquet":
        from sightline.data.parquet import open_parquet

        return open_parquet([path], word)
    if kind == ".txt":
        return open_list(path)
    if is_picture(path.name):
        raise UserError(f"{word} is a single picture. Give the folder it lies in: {path.parent}")
    raise UserError(
        f'{word} is a "{kind or "nameless"}" file. DATA is a folder of pictures, a list (.txt), '
        f"Parquet (.parquet), {PREFIX}NAME, or built in: {', '.join(BUILT_IN)}."
    )


def _from_pattern(word: str) -> Source:
    found = sorted(glob.glob(str(Path(word).expanduser()), recursive=True))
    parquet = [Path(file) for file in found if file.lower().endswith(".parquet")]
    if parquet:
        from sightline.data.parquet import open_parquet

        return open_parquet(parquet, word)
    pictures = [file for file in found if is_picture(file) and Path(file).is_file()]
    if not pictures:
        kind = f"{len(found)} files, none a picture or Parquet" if found else "nothing"
        raise UserError(f"The pattern {word} matches {kind}. Look what it gives with: ls {word}")
    return open_files(pictures, word)


def _missing(word: str, path: Path) -> str:
    parent = path.parent
    beside = [p.name for p in parent.iterdir()] if parent.is_dir() else []
    proper = {name.lower(): name for name in beside}
    near = nearest(path.name, [*proper, *BUILT_IN])
    for lower, name in proper.items():
        near = near.replace(f'"{lower}"', f'"{parent / name if parent != Path() else name}"')
    return (
        f'There is no file or folder "{word}".{near} DATA is a folder of pictures, a list (.txt), '
        f"Parquet, {PREFIX}NAME, or built in: {', '.join(BUILT_IN)}."
    )


def _folder_splits(path: Path) -> dict[str, Path]:
    """The folders of the two splits, if both are there."""
    named = {name: path / name for name in (*TRAIN, *TEST) if (path / name).is_dir()}
    train = next((named[n] for n in TRAIN if n in named), None)
    test = next((named[n] for n in TEST if n in named), None)
    return {"train": train, "test": test} if train and test else {}


def _parquet(folder: Path, files: list[str]) -> list[Path]:
    """The Parquet files among a folder's files, unless there are pictures too."""
    if any(is_picture(file) for file in files):
        return []
    return [folder / file for file in files if file.lower().endswith(".parquet")]


def _file_splits(files: list[Path]) -> dict[str, list[Path]]:
    """Files by the split that their path names, if both splits are named."""
    by_split: dict[str, list[Path]] = {"train": [], "test": []}
    for file in files:
        words = re.split(r"[-_./\\]", f"{file.parent.name}/{file.name}".lower())
        if set(words) & set(TRAIN):
            by_split["train"].append(file)
        elif set(words) & set(TEST):
            by_split["test"].append(file)
    return by_split if all(by_split.values()) else {}
