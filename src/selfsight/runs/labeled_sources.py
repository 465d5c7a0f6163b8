"""Open the labeled images of an evaluation: the splits, and the classes that are used."""

from typing import NamedTuple

from selfsight.data import Source, list_splits, open_source
from selfsight.data.sources.classes import are_all, class_words, has_all_classes, select_classes
from selfsight.errors import list_first
from selfsight.options import EvalOptions


class LabeledSources(NamedTuple):
    """Images to train on and to test on; without the latter a part of the former is held out."""

    train: Source
    test: Source | None
    classes: tuple[str, ...]  # words of --classes, or of the run; none for all classes
    note: str = ""  # a sentence, if the run decided on the classes


def open_labeled(options: EvalOptions, run_classes: tuple[str, ...]) -> LabeledSources:
    """Open the labeled images with the classes of the options.

    Without --classes, those that the run was trained on are used if the images have them all.
    """
    labeled = str(options.labeled)
    classes = class_words(options.classes)
    train = _open_split(labeled, "train", classes, options.label_column)
    note = ""
    if not classes and not are_all(run_classes):
        given = list_first(run_classes)
        if has_all_classes(train, run_classes):
            classes, train = run_classes, select_classes(train, run_classes)
            note = f"The classes are those of the run: {given}. --classes all uses all."
        else:
            note = f"{labeled} has not all the classes of the run ({given}), so all are used."
    if options.test is None and "test" not in list_splits(labeled):
        return LabeledSources(train, None, classes, note)
    test = _open_split(str(options.test or labeled), "test", classes, options.label_column)
    return LabeledSources(train, test, classes, note)


def _open_split(
    path: str, split: str, classes: tuple[str, ...], label_column: str | None
) -> Source:
    named = split if split in list_splits(path) else None
    return open_source(path, labels=True, split=named, classes=classes, label_column=label_column)
