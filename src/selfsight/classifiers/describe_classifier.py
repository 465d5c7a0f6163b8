"""Describe a classifier: its labels, accuracy and confidences, and what it predicted."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfsight.errors import escape, list_first, quote_word
from selfsight.options.encoder_options import ClassifyOptions
from selfsight.runs.compare_runs import format_measure
from selfsight.runs.describe_results import describe_results, tabulate_classes
from selfsight.terminal.console import build_table, open_console

FEW = 10  # labeled images of a class, below which a sentence says how little this is
MOST = 5  # classes that a summary of predictions names


def print_classifier(
    about: Mapping[str, Any], notes: Sequence[str], path: Path, *, by_class: bool
) -> None:
    """Print the accuracy with its interval, the classes, the confidences and the file."""
    console = open_console()
    measured = about["measured"]
    if by_class and measured["n"]:
        console.print(build_table(tabulate_classes(measured), title="Accuracy of each class"))
    lines = [describe_labels(about), *notes, *describe_measures(about)]
    console.print(*lines, f"Saved as {path}", sep="\n", markup=False, soft_wrap=True)


def describe_labels(about: Mapping[str, Any]) -> str:
    """Say how many images of how many classes, and which class has fewest."""
    sizes = about["images_per_class"]
    smallest = min(sizes, key=sizes.__getitem__)
    text = f"{about['images']:,} labeled images of {len(sizes):,} classes"
    if len({*sizes.values()}) == 1:
        text += f", {sizes[smallest]:,} of each"
    else:
        text += f', from {sizes[smallest]:,} ("{smallest}") to {max(sizes.values()):,} of each'
    if sizes[smallest] >= FEW:
        return f"{text}."
    return f"{text}: these are few, so the accuracy on other images may differ."


def describe_measures(about: Mapping[str, Any]) -> list[str]:
    """Sentences on the accuracy, the classes and the confidences."""
    measured, trained = about["measured"], about["measured"]["trained_on"]
    if not measured["n"]:
        return [
            "The accuracy is not known: no class has two images, so that none could be held "
            "out. Confidences are not calibrated either. Give --test FOLDER, or more images."
        ]
    how = f"on {measured['n']:,} test images"
    if measured["measured_on"] != "test images":
        how = f"on {measured['n']:,} held-out images"
        how += (
            f" (a fifth; the classifier was trained on the other {trained:,})"
            if about["fine_tuned"]
            else f" (5-fold cross-validation; the saved classifier was trained on all {trained:,})"
        )
    guessed = f"always guessing the most frequent class {measured['guessed']:.1%}"
    lines = [f"Accuracy {format_measure(measured, 'accuracy')} {how}; {guessed}."]
    shown = {key: measured[key] for key in measured if key != "weight_decay"}
    sentences = [line.removeprefix(": ") for line in describe_results({"": shown})]
    lines += [line[0].upper() + line[1:] for line in sentences]  # class names keep their case
    confused = _most_confused(measured)
    lines += [f"Most confused: {confused}."] if confused else []
    return [*lines, _describe_confidences(measured)]


def _describe_confidences(measured: Mapping[str, Any]) -> str:
    after, before = measured["calibration_error"], measured["calibration_error_before"]
    if not measured["calibrated"]:
        return (
            f"Confidences are not calibrated, because no labeled image could be held out: they "
            f"are off by {before:.1%} on test images (expected calibration error)."
        )
    return (
        f"Confidences are off by {after:.1%} (expected calibration error; {before:.1%} before a "
        f"temperature of {measured['temperature']:.2f}, fitted on held-out images)."
    )


def _most_confused(measured: Mapping[str, Any]) -> str:
    """Name the pair of classes that is mistaken most often."""
    names = measured.get("class_names", ())
    pairs = [
        (count, names[i], names[j], sum(row))
        for i, row in enumerate(measured.get("confusion", ()))
        for j, count in enumerate(row)
        if i != j and count
    ]
    if not pairs:
        return ""
    count, true, predicted, total = max(pairs, key=lambda pair: pair[0])
    return f'"{true}" taken for "{predicted}", {count:,} of {total:,}'


def write_predict_command(encoder: str, options: ClassifyOptions, name: str) -> str:
    """Write the command that predicts with this classifier, for a shell."""
    backbone = "--backbone " if options.backbone is not None else ""
    trust = " --trust" if options.trust else ""
    command = f"selfsight classify {backbone}{quote_word(encoder)} --classifier {quote_word(name)}"
    return f"{command} --predict FOLDER{trust}"


def describe_predictions(predicted: Mapping[str, Any]) -> str:
    """Say how many images were predicted, as what, and which could not be read."""
    counts = sorted(predicted["counts"].items(), key=lambda pair: -pair[1])
    found = [f'"{name}" {count:,}' for name, count in counts if count]
    text = f"Predicted {predicted['predicted']:,} of {predicted['images']:,} images"
    if found:
        text += f": {list_first(found, MOST)}; mean confidence {predicted['mean_confidence']:.1%}"
    lines = [f"{text}."]
    if predicted["unreadable"]:
        files = list_first([f"{name} ({why})" for name, why in predicted["unreadable"]], 3)
        lines.append(f"Could not be read, and have no class in the file: {files}.")
    return escape_lines([*lines, f"Wrote {predicted['predictions']}"])


def escape_lines(lines: Sequence[str]) -> str:
    """Join lines and escape control characters: names in them are untrusted."""
    return "\n".join(escape(line) for line in lines)
