"""Files on local disks, and remote files through fsspec: s3://, gs://, hf://, https://."""

import functools
import glob
import io
import itertools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from selfsight.data.image_limits import check_regular, max_image_bytes
from selfsight.data.sources.source import digest
from selfsight.errors import UserError, suggest

URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
BRACES = re.compile(
    r"\{(?:(\d{1,18})\.\.(\d{1,18})|([^{}]*,[^{}]*))\}"
)  # {000..012} or {train,val}
MAX_EXPANDED = 1_000_000  # names that a pattern with braces may stand for
PACKAGES = {  # that fsspec needs for each protocol
    **{"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub"},
    **{"http": "aiohttp", "https": "aiohttp", "abfs": "adlfs", "az": "adlfs"},
}
VERSION_KEYS = (  # entries of fsspec's file information that change with the file
    *("ETag", "etag", "oid", "blob_id", "md5Hash", "md5", "checksum", "LastModified"),
    *("last_modified", "mtime", "updated", "created"),
)
PAUSES = (0.5, 2.0, 6.0)  # seconds before each retry
PERMANENT_ERRORS = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    ValueError,
    ImportError,
)
RETRY_STATUSES = (408, 429)  # client errors of HTTP after which a retry can succeed
CONCURRENT_REQUESTS = 32
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class File:
    """One file; `system` is its fsspec file system, or None on this machine."""

    path: str
    system: Any = field(default=None, compare=False)
    version: str | None = field(default=None, compare=False)
    """Size and time of change, if a listing contained them."""

    @property
    def name(self) -> str:
        """Name without the folder."""
        return os.path.basename(self.path)

    @property
    def version_known(self) -> bool:
        """Whether the fingerprint needs no request to a server."""
        return self.system is None or self.version is not None

    def read(self) -> bytes:
        """Read the whole file, which is an image."""
        if self.system is None:
            return read_file(self.path)
        return retry(lambda: self.system.cat_file(self.path))

    def read_range(self, start: int, stop: int) -> bytes:
        """Read the bytes from `start` up to `stop`, in one request; the caller bounds it."""
        if self.system is None:
            check_regular(self.path)
            with open(self.path, "rb", buffering=0) as file:
                file.seek(start)
                return _read_exactly(file.read, stop - start)
        return retry(lambda: self.system.cat_file(self.path, start=start, end=stop))

    def open(self) -> Any:
        """Open as a seekable binary file; the caller closes it."""
        if self.system is None:
            check_regular(self.path)
            return open(self.path, "rb")
        return _RetryingFile(retry(lambda: self.system.open(self.path, "rb")))

    def sibling(self, name: str) -> "File":
        """Another file by its URL, or by its path relative to the folder of this one."""
        if is_url(name):
            return resolve_url(name)
        if self.system is None:
            return File(str(Path(self.path).parent / os.path.expanduser(name)))
        return File(
            name if name.startswith("/") else f"{os.path.dirname(self.path)}/{name}", self.system
        )

    def fingerprint(self) -> str:
        """A line that changes when the file does."""
        try:
            if self.system is None:
                stat = os.stat(self.path)
                return f"{self.path} {stat.st_size} {stat.st_mtime_ns}"
            version = self.version or _version(retry(lambda: self.system.info(self.path)))
            return f"{self.path} {version}"
        except OSError:
            return f"{self.path} missing"


class _RetryingFile(io.RawIOBase):
    """A remote file that reads again where the server fails."""

    def __init__(self, file: Any) -> None:
        self.file, self.at = file, 0

    def read(self, size: int | None = -1) -> bytes:
        data = retry(lambda: self._read(-1 if size is None else size))
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


def retry(request: Callable[[], Result]) -> Result:
    """Repeat a failing request a few times; raise an OSError if it keeps failing."""
    tries = 0
    while True:
        try:
            return request()
        except PERMANENT_ERRORS:
            raise
        except Exception as error:  # fsspec's drivers raise those of their network libraries
            tries += 1
            if tries > len(PAUSES) or _is_rejected(error):
                message = str(error).strip().split("\n")[0] or type(error).__name__
                raise OSError(f"the server failed {tries} times: {message}") from error
            time.sleep(PAUSES[tries - 1])


def _is_rejected(error: Exception) -> bool:
    """Whether a web server rejected the request, and would reject it again."""
    status = getattr(error, "status", None)
    return isinstance(status, int) and 400 <= status < 500 and status not in RETRY_STATUSES


def _version(info: Mapping[str, Any]) -> str:
    """Size and time of change; empty if neither is known: web servers list only names."""
    changes = [info[k] for k in VERSION_KEYS if info.get(k)]
    return "" if info.get("size") is None and not changes else f"{info.get('size')} {changes}"


def fingerprint_files(files: Sequence[File]) -> str:
    """Hash the files' names, sizes and times of change."""
    if all(file.version_known for file in files):
        return digest(file.fingerprint() for file in files)
    with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
        return digest(pool.map(File.fingerprint, files))


def is_url(spec: str) -> bool:
    """Whether this is a URL and not a path."""
    return URL.match(spec) is not None


def resolve_url(url: str) -> File:
    """The file or folder at a URL."""
    import fsspec  # type: ignore[import-untyped]

    protocol = url.split("://")[0].lower()
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        package = PACKAGES.get(protocol, f"what fsspec needs for {protocol}://")
        raise UserError(
            f"{url} is read through fsspec, which needs one more package for {protocol}://. "
            f"Install it with: pip install {package}"
        ) from error
    except ValueError as error:
        known = sorted(fsspec.available_protocols())
        raise UserError(
            f'"{protocol}://" is not a protocol that fsspec knows.{suggest(protocol, known)} Use '
            "for example s3://, gs://, https:// or hf://datasets/OWNER/NAME."
        ) from error
    return File(path, system)


def list_files(spec: str) -> list[File]:
    """List the files of a path, URL or pattern with {000..012}, {a,b}, * and ?."""
    return [file for pattern in expand_braces(spec) for file in _list_pattern(pattern)]


def expand_braces(spec: str) -> list[str]:
    """Expand numbers and alternatives in braces, as a shell does."""
    ranges = [int(m[2]) - int(m[1]) for m in BRACES.finditer(spec) if m[1]]
    too_long = max(ranges, default=0) >= MAX_EXPANDED  # an error without counting that far
    names = [] if too_long else list(itertools.islice(_expand(spec), MAX_EXPANDED + 1))
    if too_long or len(names) > MAX_EXPANDED:
        raise UserError(
            f"{spec} names more than {MAX_EXPANDED:,} files. Check the numbers in braces, or use a "
            "pattern with *."
        )
    return names


def _expand(spec: str) -> Iterator[str]:
    match = BRACES.search(spec)
    if match is None:
        yield spec
        return
    low, high, alternatives = match.groups()
    values: Iterable[str]
    if alternatives is None:
        width = len(low) if low.startswith("0") else 0
        values = (f"{n:0{width}d}" for n in range(int(low), int(high) + 1))
    else:
        values = alternatives.split(",")
    for value in values:
        yield from _expand(f"{spec[: match.start()]}{value}{spec[match.end() :]}")


def _list_pattern(pattern: str) -> list[File]:
    if not is_url(pattern):
        path = os.path.expanduser(pattern)
        paths = glob.glob(path, recursive=True) if glob.has_magic(path) else [path]
        return [File(path) for path in sorted(paths)]
    file = resolve_url(pattern)
    try:
        if glob.has_magic(file.path):
            return _list_remote(file, file.system.glob)
        if not file.path.lower().endswith((".tar", ".parquet", ".txt")):
            return _list_remote(file, file.system.find)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{pattern} cannot be listed: {error}. Check the address and access."
        ) from error
    return [file]


def _list_remote(folder: File, list_path: Callable[..., dict[str, dict[str, Any]]]) -> list[File]:
    """List files with their versions: one request for each file would take long."""
    infos = retry(lambda: list_path(folder.path, detail=True))
    return [File(path, folder.system, _version(infos[path]) or None) for path in sorted(infos)]


def read_file(path: str) -> bytes:
    """Read a local image, in half the time of `Path.read_bytes`: streams read thousands a second.

    Raise for what is not a regular file or is larger than an image may be.
    """
    size = check_regular(path, max_image_bytes())
    file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        return _read_exactly(functools.partial(os.read, file), size)
    finally:
        os.close(file)


def _read_exactly(read: Callable[[int], bytes], count: int) -> bytes:
    """Read until there are `count` bytes: a raw read may stop early, for example at 2 GiB."""
    data = read(count)
    while len(data) < count and (more := read(count - len(data))):
        data += more
    return data
