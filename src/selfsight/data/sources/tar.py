"""Tar shards named as in WebDataset: key.jpg beside key.cls, key.json or key.txt."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from selfsight.data.cache_files import cache_folder
from selfsight.data.dataset_index import Index, IndexWriter, load_or_write_index
from selfsight.data.decoders.decode_image import describe_error
from selfsight.data.image_limits import UnreadableError, check_bytes
from selfsight.data.sources.folder import IMAGE_SUFFIXES, is_image
from selfsight.data.sources.remote_files import File, fingerprint_files
from selfsight.data.sources.source import (
    SPARSE,
    UNLABELED,
    LazyNames,
    Source,
    digest,
    sort_class_names,
)
from selfsight.data.sources.tar_labels import (
    LABEL_SUFFIXES,
    MAX_LABEL_BYTES,
    ClassCounter,
    parse_class,
)
from selfsight.data.sources.tar_members import Member, TarDamageError, read_members
from selfsight.errors import UserError
from selfsight.terminal.progress import track

VERSION = 3  # of the index
READ_THREADS = 8  # shards indexed at once
CHUNK_BYTES = 2 << 20  # that are read at once
MAX_CHUNK = 256  # images
COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, zstd


class _Image(NamedTuple):
    """An image in a shard, and its class if it has one."""

    name: str
    offset: int
    size: int
    class_name: str | None


class _Shard(NamedTuple):
    """The images of a shard, and how many members could not be read."""

    images: list[_Image]
    sparse: int
    large: int


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
        check_bytes(int(sizes[i]))
        return shard_of(i).read_range(int(offsets[i]), int(offsets[i] + sizes[i]))

    def read_range(first: int, end: int) -> list[bytes]:
        begin, last = int(offsets[first]), end - 1
        check_bytes(int(sizes[first:end].max()))
        if int(offsets[last]) - begin > SPARSE * int(sizes[first:end].sum()) + CHUNK_BYTES:
            return [read(i) for i in range(first, end)]  # between them are large other files
        data = shard_of(first).read_range(begin, int(offsets[last] + sizes[last]))
        at, lengths = (offsets[first:end] - begin).tolist(), sizes[first:end].tolist()
        return [data[a : a + n] for a, n in zip(at, lengths, strict=True)]

    mean_bytes = max(1, index.metadata["bytes"] / count)
    return Source(
        name=name,
        names=LazyNames(count, name_of),
        labels=columns["label"] if class_names else None,
        class_names=class_names,
        read=read,
        fingerprint=lambda: fingerprint,
        notes=(*index.notes, *index.metadata["notes"]),
        shard_starts=np.array(starts),
        chunk_size=max(1, min(MAX_CHUNK, int(CHUNK_BYTES / mean_bytes))),
        read_range=read_range,
    )


def _write_index(files: Sequence[File], name: str, index: IndexWriter) -> None:
    classes = ClassCounter()
    count = total_bytes = text_bytes = sparse = large = 0
    with ThreadPoolExecutor(READ_THREADS) as pool:
        index.add({"starts": [0]})
        shards = _read_shards(pool, files)
        for shard in track(shards, f"indexing {name}", total=len(files)):
            images = shard.images
            names = [image.name.encode() for image in images]
            name_ends = text_bytes + np.cumsum([len(text) for text in names], dtype=np.int64)
            for image in images:
                classes.add(image.class_name)
            index.add(
                {
                    "offset": [image.offset for image in images],
                    "size": [image.size for image in images],
                    "label": [classes.numbers.get(m.class_name or "", UNLABELED) for m in images],
                    "name_end": name_ends,
                    "text": np.frombuffer(b"".join(names), np.uint8),
                    "starts": [count + len(images)],
                }
            )
            text_bytes = int(name_ends[-1]) if images else text_bytes
            count += len(images)
            total_bytes += sum(image.size for image in images)
            sparse, large = sparse + shard.sparse, large + shard.large
        if not count:
            raise UserError(
                f"{name} holds no images. Tar shards should hold files such as 000.jpg, with "
                "their class in 000.cls if there is one."
            )
        class_names = [] if classes.are_captions(count) else sort_class_names(classes.numbers)
        sorted_number = {name: i for i, name in enumerate(class_names)}
        table = [sorted_number.get(name, UNLABELED) for name in classes.numbers]
        index.translate("label", np.array(table or [UNLABELED]))
        notes = []
        if sparse:
            notes.append(f"{sparse} images of {name} are sparse members of a tar: left out.")
        if large:
            size = f"{MAX_LABEL_BYTES >> 20} MiB"
            notes.append(f"{large} label files of {name} have more than {size}: not read.")
        index.finish({"class_names": class_names, "bytes": total_bytes, "notes": notes})


def _read_shards(pool: ThreadPoolExecutor, files: Sequence[File]) -> Iterator[_Shard]:
    """Yield each shard's images in order; a few shards are read at once, so memory stays small."""
    for first in range(0, len(files), READ_THREADS):
        group = files[first : first + READ_THREADS]
        yield from pool.map(_read_shard, group)


def _read_shard(file: File) -> _Shard:
    """Read the images of one shard; files with the same key follow each other."""
    key, images, classes = "", list[_Image](), dict[str, str | None]()
    shard = _Shard([], 0, 0)
    try:
        with file.open() as opened:
            for member in _read_members(file, opened):
                if os.path.basename(member.name).startswith("."):
                    continue
                next_key, suffix = _split_name(member.name)
                if next_key != key:
                    shard.images.extend(_label_images(images, classes))
                    key, images, classes = next_key, [], {}
                if is_image(member.name):
                    if member.is_sparse:
                        shard = shard._replace(sparse=shard.sparse + 1)
                    else:
                        images.append(_Image(member.name, member.offset, member.size, None))
                elif suffix in LABEL_SUFFIXES and member.size > MAX_LABEL_BYTES:
                    shard = shard._replace(large=shard.large + 1)
                elif suffix in LABEL_SUFFIXES:
                    opened.seek(member.offset)
                    classes[suffix] = parse_class(suffix, opened.read(member.size))
        shard.images.extend(_label_images(images, classes))
        return shard
    except FileNotFoundError as error:
        raise UserError(f"There is no file {file.path}. Check the name or the pattern.") from error
    except (OSError, UnreadableError) as error:
        raise UserError(f"{file.path} cannot be read: {describe_error(error)}.") from error


def _read_members(file: File, opened: Any) -> Iterator[Member]:
    """Yield the files of a tar; say where it is damaged."""
    try:
        yield from read_members(opened)
    except TarDamageError as error:
        opened.seek(0)
        if error.offset:
            raise UserError(_describe_damage(file, error.offset, str(error))) from error
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


def _describe_damage(file: File, offset: int, reason: str) -> str:
    return (
        f"The tar shard {file.path} is damaged or cut off at byte {offset}: {reason}. The images "
        "after that byte would be lost. Write the shard again, or leave it out."
    )


def _label_images(images: list[_Image], classes: dict[str, str | None]) -> Iterator[_Image]:
    """Yield the images of one key with its class; 000.seg.png only if there is no 000.jpg."""
    class_name = next((classes[s] for s in LABEL_SUFFIXES if classes.get(s) is not None), None)
    plain = [image for image in images if f".{_split_name(image.name)[1]}" in IMAGE_SUFFIXES]
    for image in plain or images:
        yield image._replace(class_name=class_name)


def _split_name(name: str) -> tuple[str, str]:
    """Key and suffix: the path up to the first dot of the file name, and the rest."""
    folder, base = os.path.split(name)
    stem, _, suffix = base.partition(".")
    return f"{folder}/{stem}", suffix.lower()
