"""Images in files: a folder nested at any depth, a text list, or the matches of a pattern."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from selfsight.data.decode import HEIC_HINT, heic_readable
from selfsight.data.remote import File, stamp_of
from selfsight.data.source import Source, digest, listed, numbered
from selfsight.errors import UserError

HEIC = {".heic", ".heif", ".hif"}
IMAGES = HEIC | {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".avif", ".jp2"),
}


def files_under(folder: Path) -> list[str]:
    """Sorted relative paths of all files but hidden ones; links are followed, each folder once."""
    found, seen = [], set()
    for here, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(here)
        if real in seen:  # a link that leads back up
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(f for f in folders if not _hidden(f))
        found += [os.path.relpath(os.path.join(here, f), folder) for f in files if not _hidden(f)]
    return sorted(found)


def is_image(name: str) -> bool:
    """Whether a file's name ends as images' names do."""
    return os.path.splitext(name)[1].lower() in IMAGES


def open_folder(folder: Path, files: Sequence[str], *, name: str, labels: bool) -> Source:
    """The images among a folder's files; classes are its sub-folders, if asked for."""
    images = [file for file in files if is_image(file)]
    if not images:
        raise UserError(f"{folder} holds no images: {_what(files)} {_reads()}")
    _refuse_only_heic(images, str(folder))
    words = None
    if labels:
        parts = [file.split(os.sep) for file in images]
        words = [part[0] if len(part) > 1 else None for part in parts]
        if not any(words):
            raise UserError(
                f"{folder} has no sub-folders with images, so there are no labels. Put the "
                f"images of each class into a folder of its own: {folder}/CLASS/image.jpg."
            )
    return _of_files([File(str(folder / file)) for file in images], images, words, name)


def open_list(file: File, name: str) -> Source:
    """The images that a text file names, one per line, with a label after a tab if it has one."""
    try:
        lines = file.read().decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not a text file in UTF-8: {error}.") from error
    except OSError as error:
        raise UserError(f"The list {name} cannot be read: {error}.") from error
    rows = [line.split("\t") for line in lines if line.strip()]
    if not rows:
        raise UserError(
            f"The list {name} is empty. It should have one image per line, relative to its own "
            "folder: PATH, or PATH<tab>LABEL."
        )
    names = [row[0] for row in rows]
    words = [row[1].strip() or None if len(row) > 1 else None for row in rows]
    files = [file.beside(one) for one in names]
    return _of_files(files, names, words if any(words) else None, name)


def open_files(files: Sequence[File], name: str) -> Source:
    """Images named one by one."""
    paths = [file.path for file in files]
    _refuse_only_heic(paths, name)
    return _of_files(files, paths, None, name)


def _of_files(
    files: Sequence[File], names: Sequence[str], words: Sequence[str | None] | None, name: str
) -> Source:
    labels, class_names = (None, ()) if words is None else numbered(words)
    return Source(
        name=name,
        # A name that is no UTF-8 must still be printed and written to JSON.
        names=[os.fsencode(n).decode("utf-8", "replace") for n in names],
        labels=labels,
        class_names=class_names,
        read=lambda i: files[i].read(),
        path=None if any(f.system for f in files) else lambda i: files[i].path,
        # Asking a server about every single image would take longer than reading them.
        stamp=lambda: stamp_of(files) if all(f.known for f in files) else digest(names),
    )


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _what(files: Sequence[str]) -> str:
    if not files:
        return "it is empty."
    kinds = Counter(os.path.splitext(f)[1].lower() or "no ending" for f in files)
    return f"{len(files)} files, none an image: {listed([k for k, _ in kinds.most_common()])}."


def _reads() -> str:
    return (
        "Give a folder with JPEG, PNG or other images at any depth, with tar shards, or with "
        "Parquet files."
    )


def _refuse_only_heic(images: Sequence[str], where: str) -> None:
    heic = sum(os.path.splitext(p)[1].lower() in HEIC for p in images)
    if heic == len(images) and not heic_readable():
        raise UserError(f"All {heic} images of {where} are HEIC files. {HEIC_HINT}")
