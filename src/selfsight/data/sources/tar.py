"""Tar shards in the naming of WebDataset: key.jpg beside key.cls, key.json or key.txt."""

import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from selfsight.data.dataset_index import Index, IndexWriter, made_index
from selfsight.data.decode_threads import reason
from selfsight.data.pixel_cache import default_folder
from selfsight.data.remote import File, stamp_of
from selfsight.data.source import UNKNOWN, Computed, Source, digest, sorted_words
from selfsight.data.sources.folder import IMAGES, is_image
from selfsight.errors import UserError
from selfsight.progress import track

VERSION = 2  # of the index
READERS = 8  # shards indexed at once
RUN = 2 << 20  # bytes that are read in one go
LONGEST_RUN = 256  # images
CAPTIONS = 1000  # so many words, of which most come once, are captions and no classes
WORDS = 1_000_000  # different ones that are counted at all
PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, zstd
LABELS = ("label", "cls", "class", "class_name", "class_id")  # keys of a JSON file


class _Row(NamedTuple):
    name: str
    offset: int
    size: int
    word: str | None


def open_tar(files: Sequence[File], name: str, *, cache_dir: str | Path | None = None) -> Source:
    """The images of one or more shards; where each lies is found out once and kept."""
    folder = Path(cache_dir) if cache_dir else default_folder()
    stamp = stamp_of(files)
    key = digest([f"tar {VERSION}", stamp])
    index = made_index(folder, key, lambda writer: _write(files, name, writer))
    return _source(files, name, index, stamp)


def _source(files: Sequence[File], name: str, index: Index, stamp: str) -> Source:
    columns = index.columns
    starts, offsets, sizes = columns["starts"], columns["offset"], columns["size"]
    ends, text, count = columns["name_end"], columns["text"], len(offsets)
    class_names = tuple(index.about["class_names"])

    def name_of(i: int) -> str:
        begin = int(ends[i - 1]) if i else 0
        return text[begin : int(ends[i])].tobytes().decode()

    def shard_of(i: int) -> File:
        return files[int(np.searchsorted(starts, i, side="right")) - 1]

    def read(i: int) -> bytes:
        return shard_of(i).part(int(offsets[i]), int(offsets[i] + sizes[i]))

    def read_run(first: int, behind: int) -> list[bytes]:
        begin, last = int(offsets[first]), behind - 1
        whole = shard_of(first).part(begin, int(offsets[last] + sizes[last]))
        at, each = (offsets[first:behind] - begin).tolist(), sizes[first:behind].tolist()
        return [whole[a : a + n] for a, n in zip(at, each, strict=True)]

    mean = index.about["bytes"] / count
    return Source(
        name=name,
        names=Computed(count, name_of),
        labels=columns["label"] if class_names else None,
        class_names=class_names,
        read=read,
        stamp=lambda: stamp,
        notes=index.notes,
        shards=np.array(starts),
        group=max(1, min(LONGEST_RUN, int(RUN / mean))),
        read_run=read_run,
    )


def _write(files: Sequence[File], name: str, index: IndexWriter) -> None:
    numbers: dict[str, int] = {}
    count = total = text = 0
    with ThreadPoolExecutor(READERS) as pool:
        index.add({"starts": [0]})
        shards = _few_ahead(pool, files)
        for rows in track(shards, f"indexing {name}", total=len(files)):
            ends = text + np.cumsum([len(row.name.encode()) for row in rows], dtype=np.int64)
            many = len(numbers) > WORDS
            for row in rows:
                if row.word is not None and not many:
                    numbers.setdefault(row.word, len(numbers))
            index.add(
                {
                    "offset": [row.offset for row in rows],
                    "size": [row.size for row in rows],
                    "label": [numbers.get(row.word or "", UNKNOWN) for row in rows],
                    "name_end": ends,
                    "text": np.frombuffer("".join(r.name for r in rows).encode(), np.uint8),
                    "starts": [count + len(rows)],
                }
            )
            text = int(ends[-1]) if rows else text
            count += len(rows)
            total += sum(row.size for row in rows)
        if not count:
            raise UserError(
                f"{name} holds no images. Tar shards should hold files such as 000.jpg, with "
                "their class in 000.cls if there is one."
            )
        captions = len(numbers) > CAPTIONS and 2 * len(numbers) > count
        words = [] if captions or len(numbers) > WORDS else sorted_words(numbers)
        number = {word: i for i, word in enumerate(words)}
        index.translate("label", np.array([number.get(w, UNKNOWN) for w in numbers] or [UNKNOWN]))
        index.finish({"class_names": words, "bytes": total})


def _few_ahead(pool: ThreadPoolExecutor, files: Sequence[File]) -> Iterator[list[_Row]]:
    """Each shard's images in order; few shards are under way, so memory stays small."""
    for first in range(0, len(files), READERS):
        yield from pool.map(lambda file: list(_rows(file)), files[first : first + READERS])


def _rows(file: File) -> Iterator[_Row]:
    """The images of one shard; members of one key follow each other."""
    key, images, words = "", list[_Row](), dict[str, str | None]()
    try:
        with file.opened() as opened, _plain_tar(file, opened) as tar:
            for member in _members(file, opened, tar):
                if not member.isfile() or os.path.basename(member.name).startswith("."):
                    continue
                now, kind = _split(member.name)
                if now != key:
                    yield from _labeled(images, words)
                    key, images, words = now, [], {}
                if is_image(member.name):
                    images.append(_Row(member.name, member.offset_data, member.size, None))
                elif kind in ("cls", "json", "txt"):
                    content = tar.extractfile(member)
                    words[kind] = _word(kind, content.read() if content else b"")
        yield from _labeled(images, words)
    except FileNotFoundError as error:
        raise UserError(f"There is no file {file.path}. Check the name or the pattern.") from error
    except OSError as error:
        raise UserError(f"{file.path} cannot be read: {reason(error)}.") from error


def _plain_tar(file: File, opened: Any) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=opened, mode="r:")
    except tarfile.TarError as error:
        opened.seek(0)
        packed = opened.read(8).startswith(PACKED)
        advice = (
            "It is compressed, and cannot be read from the middle: unpack it once, for example "
            "with gunzip or unzstd."
            if packed
            else "Write it again, or leave it out."
        )
        raise UserError(
            f"{file.path} cannot be read as a plain tar file: {error}. {advice}"
        ) from error


def _members(file: File, opened: Any, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """What is in a tar; where a header is damaged tarfile would end as if nothing followed."""
    try:
        for member in tar:
            tar.members = []  # type: ignore[attr-defined]  # it would remember them all
            yield member
    except tarfile.TarError as error:
        raise UserError(_damaged(file, tar.offset, str(error))) from error
    opened.seek(tar.offset)
    end = opened.read(2 * tarfile.BLOCKSIZE)
    if any(end):  # two blocks of zeros mark the end; that the file just ends is forgiven
        raise UserError(_damaged(file, tar.offset, "what begins there is no member of it"))


def _damaged(file: File, offset: int, why: str) -> str:
    return (
        f"The tar shard {file.path} is damaged or cut off at byte {offset}: {why}. The images "
        "behind that place would be lost. Write the shard again, or leave it out."
    )


def _labeled(images: list[_Row], words: dict[str, str | None]) -> Iterator[_Row]:
    """The sample's image: one such as 000.seg.png comes along only where there is no 000.jpg."""
    word = next((words[k] for k in ("cls", "json", "txt") if words.get(k) is not None), None)
    plain = [row for row in images if f".{_split(row.name)[1]}" in IMAGES]
    for row in plain or images:
        yield row._replace(word=word)


def _split(name: str) -> tuple[str, str]:
    """Key and ending: the name up to the first dot behind the folders, and what follows."""
    folder, base = os.path.split(name)
    stem, _, kind = base.partition(".")
    return f"{folder}/{stem}", kind.lower()


def _word(kind: str, content: bytes) -> str | None:
    text = content.decode("utf-8", "replace").strip()
    if kind != "json":
        return text or None
    try:
        told: Any = json.loads(text)
    except ValueError:
        return None
    if isinstance(told, dict):
        told = next((told[k] for k in LABELS if k in told), None)
    return str(told) if isinstance(told, str | int) and str(told) else None
