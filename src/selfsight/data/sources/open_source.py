"""Open the source that the argument DATA names: built in, folder, list, tar, Parquet, URL, ..."""

import glob
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from selfsight.data.sources import digits, shapes
from selfsight.data.sources.folder import (
    is_array,
    is_image,
    list_folder,
    open_files,
    open_folder,
    open_list,
)
from selfsight.data.sources.remote_files import BRACES, File, is_url, list_files
from selfsight.data.sources.select_classes import Classes, are_all, select_classes
from selfsight.data.sources.source import Source, resolve_unlabeled
from selfsight.data.sources.torchvision_sets import PREFIX, list_vision_splits, open_vision
from selfsight.data.sources.train_test_splits import (
    SPLITS,
    find_split_folders,
    normalize_split,
    splits_by_name,
)
from selfsight.errors import UserError, suggest

BUILT_IN = {"shapes": shapes.load_shapes_split, "digits": digits.load_digits_split}
SHARD_SUFFIXES = (".tar", ".parquet")


def open_source(
    data: str | Path,
    *,
    split: str | None = None,
    labels: bool = False,
    classes: Classes = None,
    label_column: str | None = None,
) -> Source:
    """Open the source that DATA names; if it has splits and none is given, the training split.

    Labels that are free (built-in, list, tar, Parquet, torchvision) are always read; sub-folders
    are classes only if `labels` or `classes` is given. `classes` selects some of them.
    `label_column` names the column with the labels of Parquet files.
    """
    spec = str(data)
    if not spec.strip():
        raise UserError(
            "The name of the data is empty; a variable of the shell may be unset. Give a folder: . "
            "is the current one."
        )
    source = _open_spec(spec, split, labels or not are_all(classes), label_column)
    if label_column is not None and source.label_column is None:
        raise UserError(
            f"{spec} has no columns: --label-column names a column of Parquet files. Leave it out."
        )
    source = select_classes(source, classes)
    source = resolve_unlabeled(source, need_labels=labels)
    if labels and source.labels is None and source.multilabels is None:
        if label_column is not None:
            raise UserError(
                f'Column "{label_column}" of {spec} has no labels: every row is null or below 0. '
                "Name another with --label-column."
            )
        raise UserError(
            f"{spec} has no labels. Measuring with labels needs a class for each image: "
            "sub-folders, a label after a tab in a list, a .cls file beside each image in a tar "
            "shard, or a column of labels in Parquet (--label-column NAME)."
        )
    return source


def list_splits(data: str | Path) -> tuple[str, ...]:
    """("train", "test") if the data have these splits, else ()."""
    spec, path = str(data), Path(data).expanduser()
    if spec in BUILT_IN:
        return SPLITS
    if spec.startswith(PREFIX):
        return list_vision_splits(spec)
    if is_url(spec):
        return SPLITS if splits_by_name(_select_shards(list_files(spec))) else ()
    if not path.is_dir():
        return ()
    if find_split_folders(path):
        return SPLITS
    return SPLITS if splits_by_name(_list_shards(path, list_folder(path).files)) else ()


def find_url(data: str | Path) -> str | None:
    """Return the first URL that DATA is, or that a list (.txt) names; None if all is local."""
    if is_url(str(data)):
        return str(data)
    path = Path(data).expanduser()
    if path.suffix.lower() != ".txt" or not path.is_file():
        return None
    lines = path.read_text("utf-8-sig", "replace").splitlines()
    return next((line.split("\t")[0] for line in lines if is_url(line)), None)


def _open_spec(spec: str, split: str | None, labels: bool, label_column: str | None) -> Source:
    if spec in BUILT_IN:
        return _open_built_in(spec, normalize_split(spec, split))
    if spec.startswith(PREFIX):
        if split is not None and not list_vision_splits(spec):
            raise UserError(f'{spec} is not divided into splits, so it has no split "{split}".')
        return open_vision(spec, split=normalize_split(spec, split), labels=labels)
    if is_url(spec):
        return _open_url(spec, split, label_column)
    path = Path(spec).expanduser()
    if path.is_dir():
        return _open_directory(path, spec, split, labels, label_column)
    if split is not None:
        raise UserError(f'{spec} is not divided into splits, so it has no split "{split}".')
    if path.is_file():
        return _open_file(path, spec, label_column)
    if glob.has_magic(spec) or BRACES.search(spec):
        return _open_pattern(spec, label_column)
    raise UserError(_describe_missing(spec, path))


def _open_built_in(name: str, split: str) -> Source:
    names, labels, class_names, read = BUILT_IN[name](split)
    return Source(name=name, names=names, labels=labels, class_names=class_names, read=read)


def _open_directory(
    path: Path, spec: str, split: str | None, labels: bool, label_column: str | None
) -> Source:
    split_folders = find_split_folders(path)
    if split and split_folders and (path / split).is_dir():
        folder = path / split
    else:
        folder = split_folders[normalize_split(spec, split)] if split_folders else path
    listed = list_folder(folder)
    shards = _list_shards(folder, listed.files)
    if not shards and (split_folders or split is None):
        return open_folder(folder, listed, name=spec, labels=labels)
    by_split = {} if split_folders else splits_by_name(shards)
    if split is not None and not split_folders and not by_split:
        raise UserError(
            f'{spec} has no split "{split}": it would need the folders {path}/train and '
            f"{path}/test, or tar or Parquet files with these words in their names."
        )
    source = _open_shards(
        by_split[normalize_split(spec, split)] if by_split else shards, spec, label_column
    )
    return replace(source, notes=(*listed.notes, *source.notes))


def _open_url(spec: str, split: str | None, label_column: str | None) -> Source:
    files = list_files(spec)
    shards = _select_shards(files)
    by_split = splits_by_name(shards)
    if split is not None and not by_split:
        raise UserError(f'{spec} is not divided into splits, so it has no split "{split}".')
    if shards:
        return _open_shards(
            by_split[normalize_split(spec, split)] if by_split else shards, spec, label_column
        )
    if len(files) == 1 and files[0].name.lower().endswith(".txt"):
        return open_list(files[0], spec)
    images = [file for file in files if is_image(file.name)]
    images = images or [file for file in files if is_array(file.name)]
    if images:
        return open_files(images, spec)
    convert = (
        f" If the set is not in Parquet, its converted files are at {spec.rstrip('/')}@~parquet."
        if spec.startswith("hf://") and "@" not in spec
        else ""
    )
    raise UserError(
        f"{spec} holds {len(files)} files, none of them a tar shard, Parquet or an image.{convert}"
    )


def _open_file(path: Path, spec: str, label_column: str | None) -> Source:
    suffix = path.suffix.lower()
    if suffix in SHARD_SUFFIXES:
        return _open_shards([File(str(path))], spec, label_column)
    if suffix == ".txt":
        return open_list(File(str(path)), str(path))
    if is_image(path.name) or is_array(path.name):
        raise UserError(f"{spec} is a single image. Give its folder: {path.parent}")
    compressed = spec.lower().endswith((".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2"))
    hint = " Decompress it first: images are read from any position." if compressed else ""
    raise UserError(f'{spec} is a "{suffix or "nameless"}" file.{hint} {_describe_data()}')


def _open_pattern(spec: str, label_column: str | None) -> Source:
    files = list_files(spec)
    shards = _select_shards(files)
    if shards:
        return _open_shards(shards, spec, label_column)
    images = [f for f in files if is_image(f.path) and Path(f.path).is_file()]
    images = images or [f for f in files if is_array(f.path) and Path(f.path).is_file()]
    if not images:
        matched = f"{len(files)} files, none an image, tar or Parquet" if files else "nothing"
        raise UserError(f"The pattern {spec} matches {matched}. Check it with: ls {spec}")
    return open_files(images, spec)


def _open_shards(files: Sequence[File], spec: str, label_column: str | None) -> Source:
    """Open tar shards or Parquet files, whichever these are."""
    missing = next((f.path for f in files if not (f.system or os.path.lexists(f.path))), None)
    if missing is not None:
        raise UserError(f"There is no file {missing}. Check the name or the pattern.")
    suffixes = {Path(file.name).suffix.lower() for file in files}
    if len(suffixes) > 1:
        raise UserError(
            f"{spec} holds both tar shards and Parquet files. Select one of them, for example by "
            'a pattern: "FOLDER/*.tar".'
        )
    if suffixes == {".tar"}:
        from selfsight.data.sources.tar import open_tar

        return open_tar(files, spec)
    from selfsight.data.sources.parquet import open_parquet

    return open_parquet(files, spec, label_column)


def _describe_data() -> str:
    return (
        "DATA is a folder of images, a list (.txt), tar shards (.tar), Parquet (.parquet), a "
        f"URL (s3://, hf://datasets/OWNER/NAME, ...), {PREFIX}NAME, or built in: "
        f"{', '.join(BUILT_IN)}."
    )


def _describe_missing(spec: str, path: Path) -> str:
    parent = path.parent
    siblings = [p.name for p in parent.iterdir()] if parent.is_dir() else []
    hint = suggest(path.name, [*siblings, *BUILT_IN])
    for name in siblings:
        hint = hint.replace(f'"{name}"', f'"{parent / name}"')
    return f'There is no file or folder "{spec}".{hint} {_describe_data()}'


def _select_shards(files: list[File]) -> list[File]:
    """The tar and Parquet files; none if there are image files too."""
    if any(is_image(file.name) for file in files):
        return []
    return [file for file in files if file.name.lower().endswith(SHARD_SUFFIXES)]


def _list_shards(folder: Path, names: list[str]) -> list[File]:
    """The tar and Parquet files of a folder; none if there are image files too."""
    shards = [name for name in names if name.lower().endswith(SHARD_SUFFIXES)]
    if not shards or any(map(is_image, names)):
        return []
    return [File(str(folder / name)) for name in shards]
