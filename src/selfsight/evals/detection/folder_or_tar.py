"""Read annotation and image files by name, from a folder or a tar."""

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from selfsight.data.image_limits import UnreadableError, check_regular
from selfsight.data.sources.tar_members import TarDamageError, read_members
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

    def read(name: str) -> bytes:
        check_regular(str(root / name))
        return (root / name).read_bytes()

    return Files(
        str(root),
        list_files,
        lambda name: _is_inside(name) and (root / name).is_file(),
        read,
    )


def _is_inside(name: str) -> bool:
    """Whether a name that annotations give stays within their folder: ../x and /x do not."""
    return PurePosixPath(os.path.normpath(name)).parts[0] not in ("..", "/", "//")


def _tar(path: Path) -> Files:
    try:
        check_regular(str(path))
        with path.open("rb") as tar:
            where = {
                os.path.normpath(member.name): (member.offset, member.size)
                for member in read_members(tar)
                if not member.is_sparse
            }
    except (TarDamageError, OSError, UnreadableError) as error:
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
