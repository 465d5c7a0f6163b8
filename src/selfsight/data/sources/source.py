"""A source: numbered images that are still encoded, with their names and classes."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
from jaxtyping import Bool, Int8, Int64, Integer

SPARSE = 4  # if fewer than one in so many images of a range are selected, read them one by one
LABEL_CHUNK = 1 << 20  # labels checked at once
DECIMAL = re.compile(r"-?[0-9]{1,30}")
UNLABELED = -1  # label of an image whose class is not known


@dataclass(frozen=True)
class Source:
    """Images by number; `read` returns the content of a file, or HWC pixels."""

    name: str
    names: Sequence[str]
    labels: Int64[np.ndarray, " n"] | None
    class_names: tuple[str, ...]
    read: Callable[[int], bytes | np.ndarray]
    fingerprint: Callable[[], str] | None = None
    """Returns a text that changes when the images do; None: the pixels are not cached."""
    notes: tuple[str, ...] = ()
    """Sentences to show to the user."""
    shard_starts: Int64[np.ndarray, " shards_1"] | None = None
    """First image of each shard, then the number of images; None if each image is its own file."""
    chunk_size: int = 1
    """Number of consecutive images of a shard that are best read at once."""
    read_range: Callable[[int, int], Sequence[bytes | np.ndarray]] | None = None
    """Reads consecutive images of one shard, from the first up to but not including the second."""
    local_path: Callable[[int], str] | None = None
    """Path of an image that is a file on this machine, so that another process can read it."""
    multilabels: Int8[np.ndarray, "n c"] | None = None
    """In place of `labels`, if images have several classes: 1 present, 0 absent, -1 unlabeled."""
    is_decoded: bool = False
    """Whether `read` decodes: other processes then have nothing to do."""
    label_column: str | None = None
    """The column of the labels, if the source has columns."""

    def __len__(self) -> int:
        return len(self.names)


class LazyNames(Sequence[str]):
    """Names that are computed when they are needed."""

    def __init__(self, count: int, name: Callable[[int], str]) -> None:
        self.numbers, self.name = range(count), name

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[str]: ...
    def __getitem__(self, i: int | slice) -> str | Sequence[str]:
        if isinstance(i, slice):
            return [self.name(k) for k in self.numbers[i]]
        return self.name(self.numbers[i])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


def select_names(names: Sequence[str], selected: Integer[np.ndarray, " m"]) -> LazyNames:
    """Select some of many names without copying them."""
    return LazyNames(len(selected), lambda i: names[int(selected[i])])


def select_images(source: Source, selected: Integer[np.ndarray, " m"]) -> Source:
    """Select some of the images, in their order, and renumber them."""
    read, read_range = source.read, source.read_range
    fingerprint, local_path = source.fingerprint, source.local_path

    def read_selected(first: int, end: int) -> Sequence[bytes | np.ndarray]:
        assert read_range is not None
        low, high = int(selected[first]), int(selected[end - 1]) + 1
        if high - low > SPARSE * (end - first):
            return [read(int(i)) for i in selected[first:end]]
        images = read_range(low, high)
        return [images[i] for i in selected[first:end] - low]

    return replace(
        source,
        names=select_names(source.names, selected),
        labels=None if source.labels is None else source.labels[selected],
        multilabels=None if source.multilabels is None else source.multilabels[selected],
        read=lambda i: read(int(selected[i])),
        fingerprint=None
        if fingerprint is None
        else lambda: f"{fingerprint()} {digest(map(str, selected))}",
        shard_starts=None
        if source.shard_starts is None
        else np.searchsorted(selected, source.shard_starts),
        read_range=None if read_range is None else read_selected,
        local_path=None if local_path is None else lambda i: local_path(int(selected[i])),
    )


def resolve_unlabeled(source: Source, *, need_labels: bool) -> Source:
    """Return a source in which every image has a label, or none has.

    If labels are needed, unlabeled images are left out; otherwise partial labels are dropped.
    """
    labels = source.labels
    if source.multilabels is not None:
        labels = source.multilabels.min(axis=1, initial=0)
    if labels is None or all(chunk.all() for chunk in _is_labeled(labels)):
        return source
    if not need_labels or not any(chunk.any() for chunk in _is_labeled(labels)):
        return replace(source, labels=None, multilabels=None, class_names=())
    labeled = np.flatnonzero(labels >= 0)
    left_out = len(source) - len(labeled)
    note = f"{left_out} of {len(source)} images of {source.name} have no label: left out."
    return replace(select_images(source, labeled), notes=(*source.notes, note))


def _is_labeled(labels: Integer[np.ndarray, " n"]) -> Iterator[Bool[np.ndarray, " m"]]:
    """Which labels are known, chunk by chunk: a billion of them would take a gigabyte at once."""
    for first in range(0, len(labels), LABEL_CHUNK):
        yield labels[first : first + LABEL_CHUNK] >= 0


def clean(value: object) -> str:
    """Replace what cannot be printed or encoded: JSON can hold half a character."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def sort_class_names(names: Iterable[str]) -> list[str]:
    """Sort class names alphabetically, or by value if all are numbers."""
    names = sorted(names)
    decimal = all(DECIMAL.fullmatch(name) for name in names)
    return sorted(names, key=int) if decimal else names


def encode_labels(
    classes: Sequence[str | None],
) -> tuple[Int64[np.ndarray, " n"], tuple[str, ...]]:
    """Number the classes: labels and class names from each image's class; None is unlabeled."""
    names = sort_class_names({name for name in classes if name is not None})
    numbers = {name: i for i, name in enumerate(names)}
    labels = [UNLABELED if name is None else numbers[name] for name in classes]
    return np.array(labels, dtype=np.int64), tuple(names)


def digest(lines: Iterable[str]) -> str:
    """Hash lines of text to a short hexadecimal string."""
    total = hashlib.blake2b(digest_size=12)
    for line in lines:
        total.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return total.hexdigest()
