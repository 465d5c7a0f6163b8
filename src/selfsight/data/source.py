"""A source: indexed images that are still encoded, with what is known of their classes."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import numpy as np
from jaxtyping import Bool, Int64, Integer

from selfsight.errors import UserError, suggest

SPARSE = 4  # fewer than one in so many images of a run: they are read one by one
PIECE = 1 << 20  # labels looked at together
UNKNOWN = -1  # label of an image whose class is not known


@dataclass(frozen=True)
class Source:
    """Images by number; `read` gives a file's bytes or HWC uint8 pixels."""

    name: str
    names: Sequence[str]
    labels: Int64[np.ndarray, " n"] | None
    class_names: tuple[str, ...]
    read: Callable[[int], bytes | np.ndarray]
    stamp: Callable[[], str] | None = None
    """Text that changes when the images do; without it nothing is cached."""
    notes: tuple[str, ...] = ()
    """Sentences the user should see."""
    shards: Int64[np.ndarray, " shards_1"] | None = None
    """Where shards begin, and the number of images; None if each image lies by itself."""
    group: int = 1
    """How many neighbors of a shard are best read together."""
    read_run: Callable[[int, int], Sequence[bytes | np.ndarray]] | None = None
    """Neighbors of one shard, from an image up to another, in one go."""
    path: Callable[[int], str] | None = None
    """The file of this machine in which an image lies by itself: other processes can read it."""

    def __len__(self) -> int:
        return len(self.names)


class Chosen(Sequence[str]):
    """Some names of many; none is copied."""

    def __init__(self, names: Sequence[str], kept: Integer[np.ndarray, " m"]) -> None:
        self.names, self.kept = names, kept

    def __len__(self) -> int:
        return len(self.kept)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[str]: ...
    def __getitem__(self, i: int | slice) -> str | Sequence[str]:
        if isinstance(i, slice):
            return Chosen(self.names, self.kept[i])
        return self.names[int(self.kept[i])]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


class Computed(Sequence[str]):
    """Names that are made when asked for."""

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


def subset(source: Source, keep: Integer[np.ndarray, " m"]) -> Source:
    """Some of the images, in their order, under new numbers."""
    read, run, stamp, path = source.read, source.read_run, source.stamp, source.path

    def some(first: int, behind: int) -> Sequence[bytes | np.ndarray]:
        assert run is not None
        begin, end = int(keep[first]), int(keep[behind - 1]) + 1
        if end - begin > SPARSE * (behind - first):
            return [read(int(i)) for i in keep[first:behind]]
        whole = run(begin, end)
        return [whole[i] for i in keep[first:behind] - begin]

    return replace(
        source,
        names=Chosen(source.names, keep),
        labels=None if source.labels is None else source.labels[keep],
        read=lambda i: read(int(keep[i])),
        stamp=None if stamp is None else lambda: f"{stamp()} {digest(map(str, keep))}",
        shards=None if source.shards is None else np.searchsorted(keep, source.shards),
        read_run=None if run is None else some,
        path=None if path is None else lambda i: path(int(keep[i])),
    )


def settled(source: Source, *, needed: bool) -> Source:
    """The source with a label for every image, or with none at all."""
    if source.labels is None or all(some.all() for some in _known(source.labels)):
        return source
    if not needed or not any(some.any() for some in _known(source.labels)):
        return replace(source, labels=None, class_names=())
    known = np.flatnonzero(source.labels >= 0)
    left_out = len(source) - len(known)
    note = f"{left_out} of {len(source)} images of {source.name} have no label: left out."
    return replace(subset(source, known), notes=(*source.notes, note))


def _known(labels: Int64[np.ndarray, " n"]) -> Iterator[Bool[np.ndarray, " m"]]:
    """Which labels are known, in pieces: a billion of them would take a gigabyte at once."""
    for first in range(0, len(labels), PIECE):
        yield labels[first : first + PIECE] >= 0


def keep_classes(source: Source, file: Path) -> Source:
    """Only the images of the classes that a file lists, one per line."""
    if source.labels is None:
        raise UserError(
            f"--classes keeps the classes that {file} lists, but {source.name} has no classes. "
            "Put each class into its own sub-folder, or leave --classes out."
        )
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The list of classes {file} cannot be read: {error}.") from error
    known = _by_any_name(source.class_names)
    wanted, missing = set(), []
    for line in filter(None, lines):
        # Lists of ImageNet classes often say "n01440764 tench": the first word decides there.
        found = known.get(line.lower(), known.get(line.split()[0].lower()))
        wanted.add(found) if found is not None else missing.append(line)
    if not wanted:
        first = f' Its first line is "{missing[0]}".' if missing else " It is empty."
        raise UserError(
            f"{file} lists no class of {source.name}.{first} Classes there are called "
            f"{listed(source.class_names)}.{suggest(missing[0] if missing else '', known)}"
        )
    order = sorted(wanted)
    number = np.full(len(source.class_names), UNKNOWN, np.int64)
    number[order] = np.arange(len(order))
    labels = np.where(source.labels >= 0, number[source.labels], UNKNOWN)
    kept = subset(replace(source, labels=labels), np.flatnonzero(labels >= 0))
    note = f"{len(missing)} classes of {file} were not found: {listed(missing)}."
    return replace(
        kept,
        class_names=tuple(source.class_names[i] for i in order),
        notes=(*kept.notes, note) if missing else kept.notes,
    )


def sorted_words(words: Iterable[str]) -> list[str]:
    """Class words in their order; numbers by value."""
    names = sorted(words)
    decimal = all(name.lstrip("-").isdecimal() for name in names)
    return sorted(names, key=int) if decimal else names


def numbered(words: Sequence[str | None]) -> tuple[Int64[np.ndarray, " n"], tuple[str, ...]]:
    """Class numbers and names from each image's class word; None is unknown."""
    names = sorted_words({word for word in words if word is not None})
    number = {name: i for i, name in enumerate(names)}
    labels = [UNKNOWN if word is None else number[word] for word in words]
    return np.array(labels, dtype=np.int64), tuple(names)


def digest(lines: Iterable[str]) -> str:
    """A short name for a long text."""
    total = hashlib.blake2b(digest_size=12)
    for line in lines:
        total.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return total.hexdigest()


def listed(words: Sequence[str], most: int = 6) -> str:
    """A few words and how many more there are."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def _by_any_name(class_names: tuple[str, ...]) -> dict[str, int]:
    """Class numbers by whole name and by each synonym ("tench, Tinca tinca")."""
    known: dict[str, int] = {}
    for i, name in enumerate(class_names):
        for synonym in (name, *name.split(",")):
            known.setdefault(synonym.strip().lower(), i)
    return known
