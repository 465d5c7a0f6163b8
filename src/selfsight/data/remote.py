"""Files on this machine's disks, and elsewhere through fsspec: s3://, gs://, hf://, https://."""

import functools
import glob
import io
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from selfsight.data.source import digest
from selfsight.errors import UserError, suggest

REMOTE = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")  # {000..012} or {train,val}
PACKAGES = {  # what fsspec needs for each kind of address
    **{"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub"},
    **{"http": "aiohttp", "https": "aiohttp", "abfs": "adlfs", "az": "adlfs"},
}
CHANGES = (  # what tells of one, in the words of different kinds
    *("ETag", "etag", "oid", "blob_id", "md5Hash", "md5", "checksum", "LastModified"),
    *("last_modified", "mtime", "updated", "created"),
)
PAUSES = (0.5, 2.0, 6.0)  # seconds before a server is asked again
IN_VAIN = (FileNotFoundError, PermissionError, IsADirectoryError, ValueError, ImportError)
BUSY = (408, 429)  # a web server's words for "later"
ASKING = 32  # servers' answers waited for at once
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class File:
    """One file; `system` is fsspec's, or None on this machine."""

    path: str
    system: Any = field(default=None, compare=False)
    told: str | None = field(default=None, compare=False)
    """Size and change, where a listing told them."""

    @property
    def name(self) -> str:
        """Without its folder."""
        return os.path.basename(self.path)

    @property
    def known(self) -> bool:
        """Whether its size and change can be told without asking a server."""
        return self.system is None or self.told is not None

    def read(self) -> bytes:
        """All of it."""
        if self.system is None:
            return whole(self.path)
        return patiently(lambda: self.system.cat_file(self.path))

    def part(self, start: int, stop: int) -> bytes:
        """The bytes from one place up to another, in one read."""
        if self.system is None:
            with open(self.path, "rb", buffering=0) as file:
                file.seek(start)
                return _exactly(file.read, stop - start)
        return patiently(lambda: self.system.cat_file(self.path, start=start, end=stop))

    def opened(self) -> Any:
        """A binary file to be read in any order, and closed."""
        if self.system is None:
            return open(self.path, "rb")
        return _Patient(patiently(lambda: self.system.open(self.path, "rb")))

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
            return f"{self.path} {self.told or _told(patiently(self._info))}"
        except OSError:
            return f"{self.path} missing"

    def _info(self) -> dict[str, Any]:
        return self.system.info(self.path)


class _Patient(io.RawIOBase):
    """A remote file that is read again where the server fails."""

    def __init__(self, file: Any) -> None:
        self.file, self.at = file, 0

    def read(self, size: int | None = -1) -> bytes:
        data = patiently(lambda: self._read(-1 if size is None else size))
        self.at += len(data)
        return data

    def _read(self, size: int) -> bytes:
        if self.file.tell() != self.at:
            self.file.seek(self.at)
        return self.file.read(size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = self.file.seek(offset, 2) if whence == 2 else offset + self.at * whence
        return self.at

    def tell(self) -> int:
        return self.at

    def close(self) -> None:
        self.file.close()
        super().close()


def patiently(ask: Callable[[], Answer]) -> Answer:
    """A server's answer; it is asked a few times, and what fails for good is an OSError."""
    tries = 0
    while True:
        try:
            return ask()
        except IN_VAIN:
            raise
        except Exception as error:  # drivers raise what their network libraries do
            tries += 1
            if tries > len(PAUSES) or _refused(error):
                said = str(error).strip().split("\n")[0] or type(error).__name__
                raise OSError(f"the server was asked {tries} times: {said}") from error
            time.sleep(PAUSES[tries - 1])


def _refused(error: Exception) -> bool:
    """Whether a web server has answered, and would answer the same again."""
    status = getattr(error, "status", None)
    return isinstance(status, int) and 400 <= status < 500 and status not in BUSY


def _told(info: Mapping[str, Any]) -> str:
    """Nothing if not even the size is known: web servers list names alone."""
    changes = [info[k] for k in CHANGES if info.get(k)]
    return "" if info.get("size") is None and not changes else f"{info.get('size')} {changes}"


def stamp_of(files: Sequence[File]) -> str:
    """A digest of the files' names, sizes and times of change."""
    if all(file.known for file in files):
        return digest(file.stamp() for file in files)
    with ThreadPoolExecutor(ASKING) as pool:
        return digest(pool.map(File.stamp, files))


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
            f'"{kind}://" is no kind of address that fsspec knows.{suggest(kind, known)} Give for '
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
            return _listed(there, there.system.glob)
        if not there.path.lower().endswith((".tar", ".parquet", ".txt")):
            return _listed(there, there.system.find)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{word} cannot be listed: {error}. Check the address and access."
        ) from error
    return [there]


def _listed(there: File, ask: Callable[..., dict[str, dict[str, Any]]]) -> list[File]:
    """What is there, with what the listing tells of each file: asking for each takes long."""
    found = patiently(lambda: ask(there.path, detail=True))
    return [File(path, there.system, _told(found[path]) or None) for path in sorted(found)]


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
