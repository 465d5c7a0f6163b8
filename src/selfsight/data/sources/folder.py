"""Images in single files: a folder nested at any depth, a text list, or a pattern."""

import codecs
import functools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from selfsight.data.decoders.decode_image import describe_error
from selfsight.data.decoders.pillow_formats import HEIC_HINT, heic_readable
from selfsight.data.image_limits import UnreadableError
from selfsight.data.sources.remote_files import File, fingerprint_files
from selfsight.data.sources.source import LazyNames, Source, digest, encode_labels
from selfsight.errors import UserError, list_first

HEIC_SUFFIXES = {".heic", ".heif", ".hif"}
IMAGE_SUFFIXES = HEIC_SUFFIXES | {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".avif", ".jp2"),
}
ARRAY_SUFFIX = ".npy"  # an image only where there are no image files: it may be anything else
MAX_LINE = 1 << 16  # characters in a line of a list
READ_BYTES = 1 << 20  # of a list that are read at once


class FolderList(NamedTuple):
    """Sorted relative paths of all files; the folders that could not be read, and why."""

    files: list[str]
    unreadable: list[str]

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence about the folders that are missing, if there are any."""
        if not self.unreadable:
            return ()
        count = len(self.unreadable)
        return (
            f"{count} sub-folder{'s' * (count > 1)} could not be read, so images may be missing: "
            f"{list_first(self.unreadable)}.",
        )


def list_folder(folder: Path) -> FolderList:
    """List all files but hidden ones; links are followed, each folder once."""
    paths, unreadable, visited, left = list[str](), list[str](), set[tuple[int, int]](), [""]
    while left:  # not os.walk, which is recursive, so that deeply nested folders would end it
        relative = left.pop()
        parent = os.path.join(folder, relative)
        try:
            status = os.stat(parent)
            if (status.st_dev, status.st_ino) in visited:  # a link to a parent folder
                continue
            visited.add((status.st_dev, status.st_ino))
            with os.scandir(parent) as opened:
                entries = [entry for entry in opened if not _is_hidden(entry.name)]
        except OSError as error:
            unreadable.append(f"{relative or folder} ({describe_error(error)})")
            continue
        folders = {entry.name for entry in entries if _is_folder(entry)}
        prefix = os.path.join(relative, "")  # millions of names: no call for each
        left += (prefix + name for name in sorted(folders, reverse=True))
        paths += [prefix + e.name for e in entries if e.name not in folders]
    paths.sort()
    return FolderList(paths, sorted(unreadable))


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself, for example
        return False


def is_image(name: str) -> bool:
    """Whether a file name has the suffix of an image format."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def is_array(name: str) -> bool:
    """Whether a file name has the suffix of an array of numpy."""
    return name.lower().endswith(ARRAY_SUFFIX)


def open_folder(folder: Path, listed: FolderList, *, name: str, labels: bool) -> Source:
    """Open the images among a folder's files; with `labels`, its sub-folders are classes."""
    images = [file for file in listed.files if is_image(file)]
    images = images or [file for file in listed.files if is_array(file)]
    if not images:
        found = " ".join([_describe(listed.files), *listed.notes])
        raise UserError(
            f"{folder} holds no images: {found} Give a folder with JPEG, PNG or other images or "
            ".npy arrays at any depth, with tar shards, or with Parquet files."
        )
    _check_heic(images, str(folder))
    classes = None
    if labels:
        parts, known = (file.partition(os.sep) for file in images), dict[str, str]()
        classes = [known.setdefault(first, first) if sep else None for first, sep, _ in parts]
        if not any(classes):
            raise UserError(
                f"{folder} has no sub-folders with images, so there are no labels. Put the "
                f"images of each class into a folder of its own: {folder}/CLASS/image.jpg."
            )
    source = _build_source(_LocalFiles(folder, images), images, classes, name)
    return replace(source, notes=listed.notes)


class _LocalFiles(Sequence[File]):
    """Files in a folder, with their names as one text: ten million take 0.3 GB and not 4."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.prefix = os.path.join(folder, "")
        self.text = os.fsencode("\0".join([*names, ""]))
        ends = np.flatnonzero(np.frombuffer(self.text, np.uint8) == 0)
        self.starts = np.concatenate([[0], ends + 1])

    def __len__(self) -> int:
        return len(self.starts) - 1

    def name(self, i: int) -> str:
        """Path relative to the folder; what is not UTF-8 in it is replaced."""
        return self._encoded_name(i).decode("utf-8", "replace")

    def _encoded_name(self, i: int) -> bytes:
        start, end = self.starts[i : i + 2].tolist()
        return self.text[start : end - 1]

    @overload
    def __getitem__(self, i: int) -> File: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[File]: ...
    def __getitem__(self, i: int | slice) -> File | Sequence[File]:
        if isinstance(i, slice):
            return [self[k] for k in range(len(self))[i]]
        return File(self.prefix + os.fsdecode(self._encoded_name(range(len(self))[i])))


def open_list(file: File, name: str) -> Source:
    """Open the images that a text file lists, one per line, with an optional label after a tab."""
    try:
        with file.open() as opened:
            fields = [line.split("\t") for line in _read_lines(opened, name) if line.strip()]
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not a text file in UTF-8: {error}.") from error
    except (OSError, UnreadableError) as error:
        raise UserError(f"The list {name} cannot be read: {describe_error(error)}.") from error
    if not fields:
        raise UserError(
            f"The list {name} is empty. It should have one image per line, relative to its own "
            "folder: PATH, or PATH<tab>LABEL."
        )
    names = [columns[0] for columns in fields]
    classes = [columns[1].strip() or None if len(columns) > 1 else None for columns in fields]
    files = [file.sibling(path) for path in names]
    return _build_source(files, names, classes if any(classes) else None, name)


def _read_lines(opened: Any, name: str) -> Iterator[str]:
    """Yield the lines of a text file; raise at a line that is not a path and label."""
    decoder, rest, data = codecs.getincrementaldecoder("utf-8-sig")(), "", b"..."
    while data:
        data = opened.read(READ_BYTES)
        *lines, rest = (rest + decoder.decode(data, final=not data)).split("\n")
        if max(map(len, [*lines, rest])) > MAX_LINE:
            raise UserError(
                f"{name} has a line of more than {MAX_LINE:,} characters. It should have one image "
                "per line: PATH, or PATH<tab>LABEL."
            )
        yield from (line.rstrip("\r") for line in lines)
    yield rest


def open_files(files: Sequence[File], name: str) -> Source:
    """Open image files, without labels."""
    paths = [file.path for file in files]
    _check_heic(paths, name)
    return _build_source(files, paths, None, name)


def _build_source(
    files: Sequence[File], names: Sequence[str], classes: Sequence[str | None] | None, name: str
) -> Source:
    labels, class_names = (None, ()) if classes is None else encode_labels(classes)
    if isinstance(files, _LocalFiles):
        shown: Sequence[str] = LazyNames(len(files), files.name)
    else:  # a name that is not UTF-8 must still be printed and written to JSON
        shown = [os.fsencode(n).decode("utf-8", "replace") for n in names]
    are_remote = not isinstance(files, _LocalFiles) and any(f.system for f in files)

    def fingerprint() -> str:
        if not are_remote:
            return digest(file.fingerprint() for file in files)
        # Asking a server about every single image would take longer than reading them.
        known = all(file.version_known for file in files)
        return fingerprint_files(files) if known else digest(shown)

    return Source(
        name=name,
        names=shown,
        labels=labels,
        class_names=class_names,
        read=lambda i: files[i].read(),
        local_path=None if are_remote else lambda i: files[i].path,
        fingerprint=functools.cache(fingerprint),
    )


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _describe(files: Sequence[str]) -> str:
    if not files:
        return "it is empty."
    suffixes = Counter(os.path.splitext(f)[1].lower() or "no suffix" for f in files)
    common = list_first([suffix for suffix, _ in suffixes.most_common()])
    return f"{len(files)} files, none of them an image: {common}."


def _check_heic(images: Sequence[str], where: str) -> None:
    """Raise if all images are HEIC files and the package that reads them is missing."""
    heic = sum(os.path.splitext(p)[1].lower() in HEIC_SUFFIXES for p in images)
    if heic == len(images) and not heic_readable():
        raise UserError(f"All {heic} images of {where} are HEIC files. {HEIC_HINT}")
