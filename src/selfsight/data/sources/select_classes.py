"""Select classes of a source: by a list that comes with the package, a file, or their names."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from selfsight.data.sources.source import UNLABELED, Source, select_images
from selfsight.errors import UserError, list_first, suggest

# CMC's list, also JCL's and solo-learn's: the classes of ImageNet-100.
CLASS_LISTS = {"imagenet100": Path(__file__).with_name("imagenet100.txt")}
ALL = "all"  # selects every class, where a recipe or a run has a list

Classes = str | Path | Sequence[str | Path] | None


def class_words(classes: Classes) -> tuple[str, ...]:
    """The words of --classes, also if there is only one, or none."""
    words = (classes,) if isinstance(classes, str | Path) else classes or ()
    return tuple(map(str, words))


def are_all(classes: Classes) -> bool:
    """Whether every class is meant: None, nothing, or "all"."""
    return class_words(classes) in ((), (ALL,))


def select_classes(source: Source, classes: Classes, *, complete: bool = True) -> Source:
    """Select the images of these classes; None, nothing and "all" select every image.

    A class that a list has and the source lacks is noted. With `complete`, one that is given by its
    name raises a UserError.
    """
    if are_all(classes):
        return source
    words = class_words(classes)
    given = list_first([word or '""' for word in words])
    if source.labels is None:
        raise UserError(
            f"--classes {given} selects classes, but {source.name} has none. Put each class into "
            f"its own sub-folder, or use all images: --classes {ALL}."
        )
    selected, missing = _find_classes(source, read_class_names(words))
    if not selected:
        first = missing[0] if missing else ""
        why = f'Its first is "{first}".' if missing else "It is empty."
        raise UserError(
            f"{given} lists no class of {source.name}. {why} The classes of {source.name} are "
            f"{list_first(source.class_names)}.{suggest(first, source.class_names)}"
        )
    typed = [name for name in missing if name in words]
    if typed and complete:
        raise UserError(
            f'{source.name} has no class "{typed[0]}".{suggest(typed[0], source.class_names)} Its '
            f"classes are {list_first(source.class_names)}."
        )
    order = sorted(selected)
    new_number = np.full(len(source.class_names), UNLABELED, np.int64)
    new_number[order] = np.arange(len(order))
    labels = np.where(source.labels >= 0, new_number[source.labels], UNLABELED)
    images = select_images(replace(source, labels=labels), np.flatnonzero(labels >= 0))
    classes_were = "class of {} was" if len(missing) == 1 else "classes of {} were"
    note = f"{len(missing)} {classes_were.format(given)} not found: {list_first(missing)}."
    return replace(
        images,
        class_names=tuple(source.class_names[i] for i in order),
        notes=(*images.notes, note) if missing else images.notes,
    )


def has_all_classes(source: Source, classes: Classes) -> bool:
    """Whether a source has every one of these classes."""
    _, missing = _find_classes(source, read_class_names(class_words(classes)))
    return source.labels is not None and not missing


def read_class_names(words: Iterable[str]) -> list[str]:
    """Names of classes: of a list that comes with the package, the lines of a file, or as given."""
    names: list[str] = []
    for word in words:
        file = CLASS_LISTS.get(word, Path(word).expanduser())
        if file.is_file() or file.suffix == ".txt":
            names += _read_lines(file)
        else:
            names.append(word)
    return names


def _read_lines(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The list of classes {file} cannot be read: {error}.") from error
    return [line.strip() for line in lines if line.strip()]


def _find_classes(source: Source, names: Iterable[str]) -> tuple[set[int], list[str]]:
    """Class numbers of the names that the source has, and the names that it lacks."""
    numbers = _numbers_by_synonym(source.class_names)
    selected, missing = set(), []
    for name in names:
        # Lists of ImageNet say "n01440764 tench, Tinca tinca". A set has either.
        first, _, rest = name.partition(" ")
        found = (numbers[n.lower()] for n in (name, first, rest.strip()) if n.lower() in numbers)
        number = next(found, None)
        selected.add(number) if number is not None else missing.append(name)
    return selected, missing


def _numbers_by_synonym(class_names: tuple[str, ...]) -> dict[str, int]:
    """Class numbers by full name and by each synonym ("tench, Tinca tinca")."""
    numbers: dict[str, int] = {}
    for i, name in enumerate(class_names):
        numbers.setdefault(name.strip().lower(), i)
    for i, name in enumerate(class_names):
        for synonym in name.split(","):
            numbers.setdefault(synonym.strip().lower(), i)
    return numbers
