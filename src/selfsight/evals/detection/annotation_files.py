"""Read annotation and image files by name, from a folder or a tar."""

import os
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from selfsight.errors import UserError


class Files(NamedTuple):
    """The files of a folder or tar; names are relative, with slashes."""

    name: str
    list_files: Callable[[str], list[str]]  # the files of a folder, sorted
    has: Callable[[str], bool]
    read: Callable[[str], bytes]


def open_files(path: Path) -> Files:
    """Open a folder or an uncompressed tar."""
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise UserError(f"{path} does not exist. Give a folder, a .tar, a .json or Parquet files.")
    if path.suffix != ".tar":
        raise UserError(
            f"{path} is neither a folder nor a .tar. Unpack it, or give a folder, a .tar, a .json "
            "or Parquet files."
        )
    return _tar(path)


def _folder(root: Path) -> Files:
    def list_files(folder: str) -> list[str]:
        here = root / folder
        inside = sorted(here.iterdir()) if here.is_dir() else []
        return [(PurePosixPath(folder) / p.name).as_posix() for p in inside if p.is_file()]

    return Files(
        str(root),
        list_files,
        lambda name: _is_inside(name) and (root / name).is_file(),
        lambda name: (root / name).read_bytes(),
    )


def _is_inside(name: str) -> bool:
    """Whether a name that annotations give stays within their folder: ../x and /x do not."""
    return PurePosixPath(os.path.normpath(name)).parts[0] not in ("..", "/", "//")


def _tar(path: Path) -> Files:
    try:
        with tarfile.open(path, "r:") as tar:
            where = {
                os.path.normpath(m.name): (m.offset_data, m.size)
                for m in tar.getmembers()
                if m.isfile()
            }
    except (tarfile.TarError, OSError) as error:
        raise UserError(
            f"{path} is not a tar that can be read: {error}. A compressed one must be unpacked."
        ) from error

    def read(name: str) -> bytes:
        offset, size = where[os.path.normpath(name)]
        with path.open("rb") as file:  # its own handle, since threads read at once
            file.seek(offset)
            return file.read(size)

    def list_files(folder: str) -> list[str]:
        return sorted(n for n in where if os.path.dirname(n) == os.path.normpath(folder))

    return Files(str(path), list_files, lambda name: os.path.normpath(name) in where, read)
