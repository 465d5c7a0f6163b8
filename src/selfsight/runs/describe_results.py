"""Sentences and tables about a result: its images, its differences and its classes."""

from collections.abc import Mapping, Sequence
from typing import Any

from selfsight.encoders.untrained_network import UNTRAINED
from selfsight.evals.encoder_differences import Difference
from selfsight.run_files.run_results import find_headline
from selfsight.runs.compare_runs import format_measure, format_number, is_end
from selfsight.terminal.console import format_setting

# Hyperparameters that a protocol selects, and the settings that hold the values it tries.
SELECTED = {"lr": ("lrs", "head_lrs"), "weight_decay": ("weight_decays",)}
AP_VARIANTS = ("", "50", "75", "_s", "_m", "_l", "_spread")
# Numbers that are printed together with a result's headline.
SECONDARY = {"top5", "ema_accuracy", "map_11_point"} | {
    f"{task}_AP{variant}" for task in ("box", "mask") for variant in AP_VARIANTS
}
EXTREME_CLASSES = 3  # named as the worst and as the best
Results = Mapping[str, Mapping[str, Any]]


def tabulate_results(results: Results) -> list[dict[str, str]]:
    """Tabulate the main numbers: a line for each, a column for each encoder."""
    table = [
        {"measure": f"{name} {key}", **_columns(result, key)}
        for name, result in results.items()
        if name != "baselines"
        for key in _printed_keys(result)
    ]
    if any(line[UNTRAINED] for line in table):
        return table
    return [{k: v for k, v in line.items() if k != UNTRAINED} for line in table]


def describe_results(results: Results) -> list[str]:
    """Describe images, differences, classes, selected hyperparameters and notes, each once."""
    notes = _describe_data(results)
    for name, result in results.items():
        if name == "baselines":
            continue
        settings = result.get("settings", {})
        notes += _describe_selection(name, result, settings)
        notes += _describe_differences(name, result) + _describe_trials(name, result, settings)
        notes += _describe_classes(name, result)
        notes += [f"{name}: {settings['note']}"] if "note" in settings else []
        notes += settings.get("notes", ())
        if "started_from" in settings:
            notes.append(f"untrained: the start encoder of the run, {settings['started_from']}.")
    return list(dict.fromkeys(notes))


def _describe_selection(
    name: str, result: Mapping[str, Any], settings: Mapping[str, Any]
) -> list[str]:
    """Name the selected hyperparameters, and those that are the lowest or highest value tried."""
    words = {key: key.replace("_", " ") for key in SELECTED if key in result}
    if not words:
        return []
    held_out = result.get("held_out_accuracy")
    how = "the only choice" if held_out is None else "best on a held-out tenth of the training set"
    selected = [f"{word} {format_setting(result[key])}" for key, word in words.items()]
    notes = [f"{name}: selected {' and '.join(selected)} ({how})."]
    for key, word in words.items():
        tried = next((settings[grid] for grid in SELECTED[key] if settings.get(grid)), ())
        if held_out is None or len(tried) < 2:
            continue
        for end, which, beyond in (
            (min(tried), "lowest", "lower"),
            (max(tried), "highest", "higher"),
        ):
            if result[key] == end != 0:
                notes.append(
                    f"{name}: {word} {format_setting(end)} is the {which} of the {len(tried)} that "
                    f"were tried; a {beyond} one may be better."
                )
    return notes


def _describe_data(results: Results) -> list[str]:
    """Say how many classes and images the protocols had."""
    sizes: dict[str, list[str]] = {}
    for name, result in results.items():
        settings = result.get("settings", {})
        if {"num_classes", "train", "test"} <= settings.keys():
            count = settings["num_classes"]
            classes = f"{count:,} class" + "es" * (count != 1)
            images = f"{settings['train']:,} training and {settings['test']:,} test images"
            sizes.setdefault(f"{classes}, {images}.", []).append(name)
    one = len(sizes) == 1
    return [size if one else f"{', '.join(names)}: {size}" for size, names in sizes.items()]


def _describe_differences(name: str, result: Mapping[str, Any]) -> list[str]:
    """Compare the encoder with the untrained network and with each of `against`."""
    headline = find_headline(result)
    differences = result.get("differences", {})
    return [
        f"{name}: {Difference(**measures[headline[0]]).describe('trained', other)}."
        for other, measures in differences.items()
        if headline is not None and headline[0] in measures
    ]


def _describe_trials(
    name: str, result: Mapping[str, Any], settings: Mapping[str, Any]
) -> list[str]:
    """Describe the spread over trials of a detector, which the interval does not include."""
    if "trials" not in settings:
        return []
    images = "the intervals cover test images only"
    if (spread := result.get("box_AP_spread")) is None:
        return [f"{name}: one trial; {images}, and --set.trials 5 measures how far trials differ."]
    trials = f"over {settings['trials']} trials box AP has a standard deviation of"
    return [f"{name}: {trials} {100 * spread:.1f} points; {images}."]


def _describe_classes(name: str, result: Mapping[str, Any]) -> list[str]:
    """Name the balanced accuracy, and the worst and the best classes."""
    rows = result.get("per_class", {})
    if len(rows) < 2:
        return []
    order = sorted(rows, key=lambda label: rows[label]["accuracy"])
    count = min(EXTREME_CLASSES, len(order) // 2)

    def listed(labels: Sequence[str]) -> str:
        return ", ".join(f'"{label}" {rows[label]["accuracy"]:.1%}' for label in labels)

    extremes = f"worst {listed(order[:count])}; best {listed(order[::-1][:count])}"
    if rows[order[0]]["accuracy"] == rows[order[-1]]["accuracy"]:
        extremes = "the same for every class"
    return [f"{name}: balanced accuracy {format_measure(result, 'balanced_accuracy')}; {extremes}."]


def tabulate_classes(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Tabulate the accuracy of every class and what it is most often mistaken for, worst first."""
    rows = result.get("per_class", {})
    precisions = {k.removeprefix("ap_"): v for k, v in result.items() if k.startswith("ap_")}
    if precisions and not rows:  # an SVM for each class
        order = sorted(precisions, key=lambda label: precisions[label])
        return [{"class": c, "average precision": format_number(precisions[c])} for c in order]
    labels = result.get("class_names") or list(rows)
    confusion = dict(zip(labels, result.get("confusion", []), strict=False))
    table = []
    for label in sorted(rows, key=lambda label: rows[label]["accuracy"]):
        line = {"class": label, "images": f"{rows[label]['n']:,}"}
        line["accuracy"] = format_measure(rows[label], "accuracy")
        if confusion:
            line["mistaken for"] = _most_mistaken(label, labels, confusion[label])
        table.append(line)
    return table


def _most_mistaken(label: str, labels: Sequence[str], row: Sequence[int]) -> str:
    """Name the class that is predicted most often in place of this one."""
    wrong = [(count, other) for other, count in zip(labels, row, strict=True) if other != label]
    count, other = max(wrong, default=(0, ""), key=lambda pair: pair[0])
    return f"{other} ({count:,})" if count else ""


def _printed_keys(result: Mapping[str, Any]) -> list[str]:
    """Choose the numbers to print: every k of kNN, else the headline, else all of them."""
    numbers = (key for key, value in result.items() if isinstance(value, int | float | None))
    keys = [key for key in numbers if not key.startswith(UNTRAINED) and not is_end(key)]
    if per_k := [key for key in keys if key.startswith("accuracy_k")]:
        return per_k
    headline = find_headline(result)
    if headline is None:
        return keys
    printed = {headline[0], *SECONDARY, *(k for k in keys if k.startswith("precision_at_"))}
    return [key for key in keys if key in printed]


def _columns(result: Mapping[str, Any], key: str) -> dict[str, str]:
    """Format one number of a result for each network that has it."""
    prefix = f"{UNTRAINED}_"
    untrained = {k.removeprefix(prefix): v for k, v in result.items() if k.startswith(prefix)}
    numbers = {"trained": result, UNTRAINED: untrained, **result.get("against", {})}
    return {name: format_measure(of_encoder, key) for name, of_encoder in numbers.items()}
