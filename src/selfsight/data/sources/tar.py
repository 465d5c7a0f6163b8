"""Tar shards named as in WebDataset: key.jpg beside key.cls, key.json or key.txt."""

import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from selfsight.data.dataset_index import Index, IndexWriter, load_or_write_index
from selfsight.data.decode import describe_error
from selfsight.data.image_limits import UnreadableError
from selfsight.data.pixel_cache import cache_folder
from selfsight.data.remote import File, fingerprint_files
from selfsight.data.sources.folder import IMAGE_SUFFIXES, is_image
from selfsight.data.sources.source import (
    UNLABELED,
    LazyNames,
    Source,
    digest,
    sort_class_names,
)
from selfsight.errors import UserError
from selfsight.progress import track

VERSION = 2  # of the index
READ_THREADS = 8  # shards indexed at once
CHUNK_BYTES = 2 << 20  # that are read at once
MAX_CHUNK = 256  # images
MAX_CLASSES = 1000  # more texts than this, most of them unique, are captions and not classes
MAX_TEXTS = 1_000_000  # different texts that are counted
COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, zstd
LABEL_KEYS = ("label", "cls", "class", "class_name", "class_id")  # of a JSON file


class _Member(NamedTuple):
    """An image in a shard, and its class if it has one."""

    name: str
    offset: int
    size: int
    class_name: str | None


def open_tar(files: Sequence[File], name: str) -> Source:
    """Open the images of one or more shards; an index of their offsets is built once and cached."""
    fingerprint = fingerprint_files(files)
    key = digest([f"tar {VERSION}", fingerprint])
    index = load_or_write_index(
        cache_folder(), key, lambda writer: _write_index(files, name, writer)
    )
    return _build_source(files, name, index, fingerprint)


def _build_source(files: Sequence[File], name: str, index: Index, fingerprint: str) -> Source:
    columns = index.columns
    starts, offsets, sizes = columns["starts"], columns["offset"], columns["size"]
    name_ends, text, count = columns["name_end"], columns["text"], len(offsets)
    class_names = tuple(index.metadata["class_names"])

    def name_of(i: int) -> str:
        begin = int(name_ends[i - 1]) if i else 0
        return text[begin : int(name_ends[i])].tobytes().decode()

    def shard_of(i: int) -> File:
        return files[int(np.searchsorted(starts, i, side="right")) - 1]

    def read(i: int) -> bytes:
        return shard_of(i).read_range(int(offsets[i]), int(offsets[i] + sizes[i]))

    def read_range(first: int, end: int) -> list[bytes]:
        begin, last = int(offsets[first]), end - 1
        data = shard_of(first).read_range(begin, int(offsets[last] + sizes[last]))
        at, lengths = (offsets[first:end] - begin).tolist(), sizes[first:end].tolist()
        return [data[a : a + n] for a, n in zip(at, lengths, strict=True)]

    mean_bytes = index.metadata["bytes"] / count
    return Source(
        name=name,
        names=LazyNames(count, name_of),
        labels=columns["label"] if class_names else None,
        class_names=class_names,
        read=read,
        fingerprint=lambda: fingerprint,
        notes=index.notes,
        shard_starts=np.array(starts),
        chunk_size=max(1, min(MAX_CHUNK, int(CHUNK_BYTES / mean_bytes))),
        read_range=read_range,
    )


def _write_index(files: Sequence[File], name: str, index: IndexWriter) -> None:
    numbers: dict[str, int] = {}  # by class, in the order of appearance
    count = total_bytes = text_bytes = 0
    with ThreadPoolExecutor(READ_THREADS) as pool:
        index.add({"starts": [0]})
        shards = _read_shards(pool, files)
        for members in track(shards, f"indexing {name}", total=len(files)):
            lengths = [len(member.name.encode()) for member in members]
            name_ends = text_bytes + np.cumsum(lengths, dtype=np.int64)
            too_many = len(numbers) > MAX_TEXTS
            for member in members:
                if member.class_name is not None and not too_many:
                    numbers.setdefault(member.class_name, len(numbers))
            index.add(
                {
                    "offset": [member.offset for member in members],
                    "size": [member.size for member in members],
                    "label": [numbers.get(m.class_name or "", UNLABELED) for m in members],
                    "name_end": name_ends,
                    "text": np.frombuffer("".join(m.name for m in members).encode(), np.uint8),
                    "starts": [count + len(members)],
                }
            )
            text_bytes = int(name_ends[-1]) if members else text_bytes
            count += len(members)
            total_bytes += sum(member.size for member in members)
        if not count:
            raise UserError(
                f"{name} holds no images. Tar shards should hold files such as 000.jpg, with "
                "their class in 000.cls if there is one."
            )
        are_captions = len(numbers) > MAX_CLASSES and 2 * len(numbers) > count
        ignore = are_captions or len(numbers) > MAX_TEXTS
        class_names = [] if ignore else sort_class_names(numbers)
        sorted_number = {name: i for i, name in enumerate(class_names)}
        table = [sorted_number.get(name, UNLABELED) for name in numbers]
        index.translate("label", np.array(table or [UNLABELED]))
        index.finish({"class_names": class_names, "bytes": total_bytes})


def _read_shards(pool: ThreadPoolExecutor, files: Sequence[File]) -> Iterator[list[_Member]]:
    """Yield each shard's images in order; a few shards are read at once, so memory stays small."""
    for first in range(0, len(files), READ_THREADS):
        group = files[first : first + READ_THREADS]
        yield from pool.map(lambda file: list(_read_members(file)), group)


def _read_members(file: File) -> Iterator[_Member]:
    """Yield the images of one shard; files with the same key follow each other."""
    key, images, classes = "", list[_Member](), dict[str, str | None]()
    try:
        with file.open() as opened, _open_tarfile(file, opened) as tar:
            for info in _iterate_tar(file, opened, tar):
                if not info.isfile() or os.path.basename(info.name).startswith("."):
                    continue
                next_key, suffix = _split_name(info.name)
                if next_key != key:
                    yield from _label_images(images, classes)
                    key, images, classes = next_key, [], {}
                if is_image(info.name):
                    images.append(_Member(info.name, info.offset_data, info.size, None))
                elif suffix in ("cls", "json", "txt"):
                    content = tar.extractfile(info)
                    classes[suffix] = _parse_class(suffix, content.read() if content else b"")
        yield from _label_images(images, classes)
    except FileNotFoundError as error:
        raise UserError(f"There is no file {file.path}. Check the name or the pattern.") from error
    except (OSError, UnreadableError) as error:
        raise UserError(f"{file.path} cannot be read: {describe_error(error)}.") from error


def _open_tarfile(file: File, opened: Any) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=opened, mode="r:")
    except tarfile.TarError as error:
        opened.seek(0)
        compressed = opened.read(8).startswith(COMPRESSED)
        advice = (
            "It is compressed, and images must be readable from any position: decompress it once, "
            "for example with gunzip or unzstd."
            if compressed
            else "Write it again, or leave it out."
        )
        raise UserError(
            f"{file.path} cannot be read as a plain tar file: {error}. {advice}"
        ) from error


def _iterate_tar(file: File, opened: Any, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar; raise at a damaged header, where tarfile would just stop."""
    try:
        for info in tar:
            tar.members = []  # type: ignore[attr-defined]  # tarfile would keep all of them
            yield info
    except tarfile.TarError as error:
        raise UserError(_describe_damage(file, tar.offset, str(error))) from error
    opened.seek(tar.offset)
    end = opened.read(2 * tarfile.BLOCKSIZE)
    if any(end):  # two blocks of zeros mark the end; a missing end marker is tolerated
        raise UserError(_describe_damage(file, tar.offset, "there is no valid header"))


def _describe_damage(file: File, offset: int, reason: str) -> str:
    return (
        f"The tar shard {file.path} is damaged or cut off at byte {offset}: {reason}. The images "
        "after that byte would be lost. Write the shard again, or leave it out."
    )


def _label_images(images: list[_Member], classes: dict[str, str | None]) -> Iterator[_Member]:
    """Yield the images of one key with its class; 000.seg.png only if there is no 000.jpg."""
    suffixes = ("cls", "json", "txt")
    class_name = next((classes[s] for s in suffixes if classes.get(s) is not None), None)
    plain = [image for image in images if f".{_split_name(image.name)[1]}" in IMAGE_SUFFIXES]
    for image in plain or images:
        yield image._replace(class_name=class_name)


def _split_name(name: str) -> tuple[str, str]:
    """Key and suffix: the path up to the first dot of the file name, and the rest."""
    folder, base = os.path.split(name)
    stem, _, suffix = base.partition(".")
    return f"{folder}/{stem}", suffix.lower()


def _parse_class(suffix: str, content: bytes) -> str | None:
    text = content.decode("utf-8", "replace").strip()
    if suffix != "json":
        return text or None
    try:
        value: Any = json.loads(text)
    except ValueError:
        return None
    if isinstance(value, dict):
        value = next((value[k] for k in LABEL_KEYS if k in value), None)
    return str(value) if isinstance(value, str | int) and str(value) else None
