"""The one word DATA: built in, folder, list, tar shards, Parquet, torchvision; here or remote."""

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from selfsight.data.remote import BRACES, File, is_remote, matches
from selfsight.data.source import Source, keep_classes, settled
from selfsight.data.sources import digits, shapes
from selfsight.data.sources.folder import (
    files_under,
    is_image,
    open_files,
    open_folder,
    open_list,
)
from selfsight.data.sources.torchvision_sets import PREFIX, open_vision, vision_splits
from selfsight.errors import UserError, suggest

BUILT_IN = {"shapes": shapes.built_in, "digits": digits.built_in}
PACKED = (".tar", ".parquet")
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

    Classes that cost nothing (built-in, list, tar, Parquet, torchvision) always come along; those
    of a folder are its sub-folders, and only if `labels` or `classes` asks for them.
    """
    word = str(data)
    source = _opened(word, split, labels or classes is not None)
    if classes is not None:
        source = keep_classes(source, Path(classes))
    source = settled(source, needed=labels)
    if labels and source.labels is None:
        raise UserError(
            f"{word} has no labels. Measuring with labels needs a class for each image: "
            "sub-folders, a label after a tab in a list, a .cls file beside each image in a tar "
            "shard, or a label column in Parquet."
        )
    return source


def splits_of(data: str | Path) -> tuple[str, ...]:
    """("train", "test") where the data are divided so, else nothing."""
    word, path = str(data), Path(data).expanduser()
    if word in BUILT_IN:
        return SPLITS
    if word.startswith(PREFIX):
        return vision_splits(word)
    if is_remote(word):
        return SPLITS if _file_splits(_packed(matches(word))) else ()
    if not path.is_dir():
        return ()
    divided = _folder_splits(path) or _file_splits(_packed(_inside(path, files_under(path))))
    return SPLITS if divided else ()


def _opened(word: str, split: str | None, labels: bool) -> Source:
    if word in BUILT_IN:
        return _built_in(word, _known(word, split))
    if word.startswith(PREFIX):
        return open_vision(word, split=_known(word, split), labels=labels)
    if is_remote(word):
        return _from_remote(word, split)
    path = Path(word).expanduser()
    if path.is_dir():
        return _from_folder(path, word, split, labels)
    if split is not None:
        raise UserError(f'{word} is not divided into splits, so it has no "{split}".')
    if path.is_file():
        return _from_file(path, word)
    if glob.has_magic(word) or BRACES.search(word):
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
    packed = _packed(_inside(inner, files))
    if not packed and (folders or split is None):
        return open_folder(inner, files, name=word, labels=labels)
    divided = {} if folders else _file_splits(packed)
    if split is not None and not folders and not divided:
        raise UserError(
            f'{word} has no split "{split}": it would need the folders {path}/train and '
            f"{path}/test, or tar or Parquet files with these words in their names."
        )
    return _from_packed(divided[_known(word, split)] if divided else packed, word)


def _from_remote(word: str, split: str | None) -> Source:
    found = matches(word)
    packed = _packed(found)
    divided = _file_splits(packed)
    if split is not None and not divided:
        raise UserError(f'{word} is not divided into splits, so it has no "{split}".')
    if packed:
        return _from_packed(divided[_known(word, split)] if divided else packed, word)
    if len(found) == 1 and found[0].name.lower().endswith(".txt"):
        return open_list(found[0], word)
    images = [file for file in found if is_image(file.name)]
    if images:
        return open_files(images, word)
    convert = (
        f" If the set is not in Parquet, its converted files are at {word.rstrip('/')}@~parquet."
        if word.startswith("hf://") and "@" not in word
        else ""
    )
    raise UserError(
        f"{word} holds {len(found)} files, of which none is a tar shard, Parquet or an image."
        f"{convert}"
    )


def _from_file(path: Path, word: str) -> Source:
    kind = path.suffix.lower()
    if kind in PACKED:
        return _from_packed([File(str(path))], word)
    if kind == ".txt":
        return open_list(File(str(path)), str(path))
    if is_image(path.name):
        raise UserError(f"{word} is a single image. Give the folder it lies in: {path.parent}")
    packed = word.lower().endswith((".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2"))
    hint = " Unpack it first: a compressed tar cannot be read from the middle." if packed else ""
    raise UserError(f'{word} is a "{kind or "nameless"}" file.{hint} {_data_is()}')


def _from_pattern(word: str) -> Source:
    found = matches(word)
    packed = _packed(found)
    if packed:
        return _from_packed(packed, word)
    images = [f for f in found if is_image(f.path) and Path(f.path).is_file()]
    if not images:
        kind = f"{len(found)} files, none an image, tar or Parquet" if found else "nothing"
        raise UserError(f"The pattern {word} matches {kind}. Look what it gives with: ls {word}")
    return open_files(images, word)


def _from_packed(files: Sequence[File], word: str) -> Source:
    """Tar shards or Parquet files, whichever these are."""
    kinds = {Path(file.name).suffix.lower() for file in files}
    if len(kinds) > 1:
        raise UserError(
            f"{word} holds both tar shards and Parquet files. Name one kind, for example by a "
            'pattern: "FOLDER/*.tar".'
        )
    if kinds == {".tar"}:
        from selfsight.data.sources.tar import open_tar

        return open_tar(files, word)
    from selfsight.data.sources.parquet import open_parquet

    return open_parquet(files, word)


def _data_is() -> str:
    return (
        "DATA is a folder of images, a list (.txt), tar shards (.tar), Parquet (.parquet), an "
        f"address (s3://, hf://datasets/OWNER/NAME, ...), {PREFIX}NAME, or built in: "
        f"{', '.join(BUILT_IN)}."
    )


def _missing(word: str, path: Path) -> str:
    parent = path.parent
    beside = [p.name for p in parent.iterdir()] if parent.is_dir() else []
    proper = {name.lower(): name for name in beside}
    near = suggest(path.name, [*proper, *BUILT_IN])
    for lower, name in proper.items():
        near = near.replace(f'"{lower}"', f'"{parent / name if parent != Path() else name}"')
    return f'There is no file or folder "{word}".{near} {_data_is()}'


def _folder_splits(path: Path) -> dict[str, Path]:
    """The folders of the two splits, if both are there."""
    named = {name: path / name for name in (*TRAIN, *TEST) if (path / name).is_dir()}
    train = next((named[n] for n in TRAIN if n in named), None)
    test = next((named[n] for n in TEST if n in named), None)
    return {"train": train, "test": test} if train and test else {}


def _inside(folder: Path, files: list[str]) -> list[File]:
    return [File(str(folder / file)) for file in files]


def _packed(files: list[File]) -> list[File]:
    """The tar and Parquet files among some, unless there are images too."""
    if any(is_image(file.name) for file in files):
        return []
    return [file for file in files if file.name.lower().endswith(PACKED)]


def _file_splits(files: list[File]) -> dict[str, list[File]]:
    """Files by the split that their path names, if both splits are named."""
    by_split: dict[str, list[File]] = {"train": [], "test": []}
    for file in files:
        words = re.split(r"[-_./\\]", "/".join(Path(file.path).parts[-2:]).lower())
        if set(words) & set(TRAIN):
            by_split["train"].append(file)
        elif set(words) & set(TEST):
            by_split["test"].append(file)
    return by_split if all(by_split.values()) else {}
