"""Files on this machine's disks, and elsewhere through fsspec: s3://, gs://, hf://, https://."""

import functools
import glob
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sightline.data.source import digest
from sightline.errors import UserError, nearest

REMOTE = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")  # {000..012} or {train,val}
PACKAGES = {  # what fsspec needs for each kind of address
    **{"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub"},
    **{"http": "aiohttp", "https": "aiohttp", "abfs": "adlfs", "az": "adlfs"},
}
CHANGES = ("ETag", "etag", "oid", "blob_id", "LastModified", "last_modified", "mtime", "created")


@dataclass(frozen=True, slots=True)
class File:
    """One file; `system` is fsspec's, or None on this machine."""

    path: str
    system: Any = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Without its folder."""
        return os.path.basename(self.path)

    def read(self) -> bytes:
        """All of it."""
        if self.system is None:
            return whole(self.path)
        return self.system.cat_file(self.path)

    def part(self, start: int, stop: int) -> bytes:
        """The bytes from one place up to another, in one read."""
        if self.system is None:
            with open(self.path, "rb", buffering=0) as file:
                file.seek(start)
                return _exactly(file.read, stop - start)
        return self.system.cat_file(self.path, start=start, end=stop)

    def opened(self) -> Any:
        """A binary file to be read in any order, and closed."""
        return open(self.path, "rb") if self.system is None else self.system.open(self.path, "rb")

    def beside(self, name: str) -> "File":
        """Another file: an address, or a path from the folder of this one."""
        if is_remote(name):
            return remote(name)
        if self.system is None:
            return File(str(Path(self.path).parent / os.path.expanduser(name)))
        return File(
            name if name.startswith("/") else f"{os.path.dirname(self.path)}/{name}", self.system
        )

    def stamp(self) -> str:
        """A line that changes when the file does."""
        try:
            if self.system is None:
                stat = os.stat(self.path)
                return f"{self.path} {stat.st_size} {stat.st_mtime_ns}"
            told = self.system.info(self.path)
            return f"{self.path} {told.get('size')} {[told[k] for k in CHANGES if told.get(k)]}"
        except OSError:
            return f"{self.path} missing"


def stamp_of(files: Iterable[File]) -> str:
    """A digest of the files' names, sizes and times of change."""
    return digest(file.stamp() for file in files)


def is_remote(word: str) -> bool:
    """Whether this is an address and not a path."""
    return REMOTE.match(word) is not None


def remote(word: str) -> File:
    """The file or folder at an address."""
    import fsspec  # type: ignore[import-untyped]

    kind = word.split("://")[0].lower()
    try:
        system, path = fsspec.core.url_to_fs(word)
    except ImportError as error:
        package = PACKAGES.get(kind, f"what fsspec needs for {kind}://")
        raise UserError(
            f"{word} is read through fsspec, which needs one more package for {kind}://. Install "
            f"it with: pip install {package}"
        ) from error
    except ValueError as error:
        known = sorted(fsspec.available_protocols())
        raise UserError(
            f'"{kind}://" is no kind of address that fsspec knows.{nearest(kind, known)} Give for '
            "example s3://, gs://, https:// or hf://datasets/OWNER/NAME."
        ) from error
    return File(path, system)


def matches(word: str) -> list[File]:
    """The files that a path, address or pattern names: {000..012}, {a,b}, * and ?."""
    return [file for one in braces(word) for file in _matches(one)]


def braces(word: str) -> list[str]:
    """One word for each number or word in braces, as a shell gives them."""
    found = BRACES.search(word)
    if found is None:
        return [word]
    low, high, words = found.groups()
    if words is None:
        width = len(low) if low.startswith("0") else 0
        parts = [f"{n:0{width}d}" for n in range(int(low), int(high) + 1)]
    else:
        parts = words.split(",")
    before, behind = word[: found.start()], word[found.end() :]
    return [one for part in parts for one in braces(f"{before}{part}{behind}")]


def _matches(word: str) -> list[File]:
    if not is_remote(word):
        path = os.path.expanduser(word)
        found = glob.glob(path, recursive=True) if glob.has_magic(path) else [path]
        return [File(one) for one in sorted(found)]
    there = remote(word)
    try:
        if glob.has_magic(there.path):
            return [File(one, there.system) for one in sorted(there.system.glob(there.path))]
        if not there.path.lower().endswith((".tar", ".parquet", ".txt")):
            inside = sorted(there.system.find(there.path))
            return [File(one, there.system) for one in inside]
    except (OSError, ValueError) as error:
        raise UserError(
            f"{word} cannot be listed: {error}. Check the address and access."
        ) from error
    return [there]


def whole(path: str) -> bytes:
    """What `Path.read_bytes` gives in half the time: a stream reads thousands of files a second."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        return _exactly(functools.partial(os.read, file), os.fstat(file).st_size)
    finally:
        os.close(file)


def _exactly(read: Callable[[int], bytes], count: int) -> bytes:
    """A raw read may stop early, at two gigabytes for one."""
    data = read(count)
    while len(data) < count and (more := read(count - len(data))):
        data += more
    return data
