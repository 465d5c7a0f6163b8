"""Compare runs in one table, from the results in their folders; computes and writes nothing."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from selfsight.command_hint import write_command
from selfsight.errors import UserError
from selfsight.evals.model_selection import select_run
from selfsight.evals.per_image import (
    Difference,
    named_interval,
    paired_differences,
    unpaired_difference,
)
from selfsight.run_folder import Run, find_headline
from selfsight.runs.collect_scores import read_per_image

ENDS = ("_low", "_high")  # of the interval of a number
SEEDS = ("_seeds", "_seeds_mean", "_seeds_std")  # of a number over runs that differ in the seed
PERCENT = (
    *("accuracy", "top5", "ap", "precision", "retrieval"),
    *("knn", "linear", "few_labels", "fine_tune"),
)
ANALYSIS_COLUMNS = ("effective_rank", "lidar", "alpha", "alignment", "uniformity")
# Settings that must agree for numbers to be comparable.
COMPARED_SETTINGS = (
    *("data", "test_data", "label_column", "num_classes", "train", "test"),
    *("features", "view", "view_settings"),
)
# What runs of one recipe may differ in.
NOT_OF_RECIPE = ("seed", "reasons", "versions", "environment")


class Measure(NamedTuple):
    """A number of a result file, and its column in the table."""

    column: str
    result: str
    key: str


class SeedSpread(NamedTuple):
    """A number of runs that differ in the seed alone.

    This is the spread of training; that of the test images is the interval of each run.
    """

    measure: Measure
    runs: tuple[str, ...]
    values: tuple[float, ...]  # one for each seed

    def numbers(self) -> dict[str, int | float]:
        """The columns that this adds to the record of each of its runs."""
        values = (len(self.values), statistics.mean(self.values), statistics.stdev(self.values))
        return {f"{self.measure.column}{end}": v for end, v in zip(SEEDS, values, strict=True)}

    def describe(self) -> str:
        """Say the mean, the standard deviation and the range."""
        count, mean, std = self.numbers().values()
        low, high = (format_number(end(self.values), self.measure.key) for end in (min, max))
        return (
            f"{self.measure.column}: over {count} seeds of one recipe "
            f"{format_number(mean, self.measure.key)}, standard deviation {100 * std:.1f} points "
            f"({low} to {high})."
        )


def compare(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], list[str]]:
    """Collect a record for each run with a key for each measure, and notes on what differs.

    An accuracy is followed by the ends of its interval, as `knn k20_low` and `knn k20_high`. If
    there are runs of its recipe with other seeds, `knn k20_seeds` is their number, and
    `knn k20_seeds_mean` and `knn k20_seeds_std` are the mean and the standard deviation over them.
    """
    folders = {run.path.name: run for run in runs}
    if len(folders) < len(runs):
        folders = {str(run.path): run for run in runs}
    results = {name: run.all_results() for name, run in folders.items()}
    if not any(results.values()):
        raise UserError(
            "None of these folders has results. Evaluate them first: "
            f"{write_command('evaluate', runs[0], '--labeled', 'DATA')}"
        )
    measures = {name: _measures(of_run) for name, of_run in results.items()}
    numbers = {name: _numbers(of_run, measures[name]) for name, of_run in results.items()}
    headlines = list(dict.fromkeys(m for name in folders for m in _headlines(measures[name])))
    spreads = [s for m in headlines for s in _spread_over_seeds(m, folders, results)]
    for spread in spreads:
        for name in spread.runs:
            numbers[name] |= spread.numbers()
    columns = list(dict.fromkeys(column for of_run in numbers.values() for column in of_run))
    records = [
        {"run": name, **{column: of_run.get(column) for column in columns}}
        for name, of_run in numbers.items()
    ]
    notes = [note for m in headlines for note in _compare_pairs(m, folders, results)]
    notes += [spread.describe() for spread in spreads]
    return records, _differences(results) + notes + _best_without_labels(runs)


def compare_two(
    measure: Measure, a: Run, b: Run, results: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> Difference | None:
    """The difference of two runs: paired if their test images are the same, else unpaired.

    None if they have other numbers of classes: their accuracies are of different tasks.
    """
    counts = {result.get("settings", {}).get("num_classes") for result in results} - {None}
    if len(counts) > 1:
        return None
    arrays = [run.arrays(measure.result) for run in (a, b)]
    if arrays[0] and arrays[1] and arrays[0]["fingerprint"] == arrays[1]["fingerprint"]:
        differences = paired_differences(*(read_per_image(of_run) for of_run in arrays if of_run))
        return differences.get(measure.key)
    intervals = [named_interval(result, measure.key) for result in results]
    if intervals[0] is None or intervals[1] is None:
        return None
    n = min(int(result.get("n", 0)) for result in results)
    return unpaired_difference(intervals[0], intervals[1], n)


def _compare_pairs(
    measure: Measure, folders: Mapping[str, Run], results: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Compare the run with the highest number with each of the others."""
    scored = {
        name: of_run[measure.result]
        for name, of_run in results.items()
        if isinstance(of_run.get(measure.result, {}).get(measure.key), int | float)
    }
    best, *others = sorted(scored, key=lambda name: -scored[name][measure.key])
    sentences = []
    for other in others:
        pair = (scored[best], scored[other])
        difference = compare_two(measure, folders[best], folders[other], pair)
        if difference is not None:
            sentences.append(f"{measure.column}: {difference.describe(best, other)}.")
    return sentences


def _spread_over_seeds(
    measure: Measure, folders: Mapping[str, Run], results: Mapping[str, Mapping[str, Any]]
) -> list[SeedSpread]:
    """Find the recipes with runs of several seeds, evaluated alike; a seed counts once."""
    recipes: dict[str, list[tuple[str, str, float]]] = {}
    for name, run in folders.items():
        recipe = run.saved_recipe()
        number = results[name].get(measure.result, {}).get(measure.key)
        if recipe and isinstance(number, int | float):
            same = {key: value for key, value in recipe.items() if key not in NOT_OF_RECIPE}
            settings = results[name][measure.result].get("settings", {})
            alike = (same, [settings.get(key) for key in COMPARED_SETTINGS])
            recipes.setdefault(repr(alike), []).append((name, str(recipe.get("seed")), number))
    spreads = []
    for runs in recipes.values():
        by_seed = {seed: number for _, seed, number in reversed(runs)}  # the first run of a seed
        if len(by_seed) > 1:
            names = tuple(name for name, _, _ in runs)
            spreads.append(SeedSpread(measure, names, tuple(by_seed.values())))
    return spreads


def _best_without_labels(runs: Sequence[Run]) -> list[str]:
    """Name the best run by its feature analysis, if two or more runs have one."""
    analyzed = [run for run in runs if run.result("analysis")]
    if len(analyzed) < 2:
        return []
    try:
        return [f"Best without labels: {select_run(analyzed).sentence}"]
    except UserError as error:
        return [str(error)]


def format_records(records: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Format the table: a line for each measure, or for each run if there are more runs.

    Accuracies are in per cent with their intervals; a missing number is an empty cell.
    """
    beside = (*ENDS, *SEEDS)  # told with a number, or below the table
    measures = [name for name in records[0] if name != "run" and not name.endswith(beside)]
    if len(records) > len(measures):
        return [
            {"run": r["run"], **{name: format_measure(r, name) for name in measures}}
            for r in records
        ]
    return [
        {"measure": name, **{str(r["run"]): format_measure(r, name) for r in records}}
        for name in measures
    ]


def _measures(results: Mapping[str, Mapping[str, Any]]) -> list[Measure]:
    """Name the numbers of every result: every k of kNN, else the headline."""
    measures = []
    for name, result in results.items():
        per_k = [key for key in result if key.startswith("accuracy_k") and not is_end(key)]
        for key in per_k:
            measures.append(Measure(f"{name} {key.removeprefix('accuracy_')}", name, key))
        if not per_k and (headline := find_headline(result)):
            key = headline[0]
            measures.append(Measure(name if key == "accuracy" else f"{name} {key}", name, key))
    return measures


def _headlines(measures: Sequence[Measure]) -> list[Measure]:
    """Select the first measure of each result."""
    return [next(of_result) for _, of_result in groupby(measures, key=lambda m: m.result)]


def _numbers(
    results: Mapping[str, Mapping[str, Any]], measures: Sequence[Measure]
) -> dict[str, float]:
    """Collect the column and the number of every result."""
    numbers: dict[str, float] = {}
    for column, name, key in measures:
        for end in ("", *ENDS):
            if isinstance(value := results[name].get(f"{key}{end}"), int | float):
                numbers[f"{column}{end}"] = value
    analysis = results.get("analysis", {})
    numbers |= {f"analysis {key}": analysis[key] for key in ANALYSIS_COLUMNS if key in analysis}
    for result in results.values():
        for key, value in result.items():
            if isinstance(value, Mapping) and isinstance(value.get("trained"), int | float):
                numbers[name_label_free(key)] = value["trained"]
    return numbers


def _differences(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Name the settings in which the runs' results differ."""
    notes = []
    for name in dict.fromkeys(name for of_run in results.values() for name in of_run):
        settings = [r[name].get("settings", {}) for r in results.values() if name in r]
        for key in COMPARED_SETTINGS:
            values = list(dict.fromkeys(str(s[key]) for s in settings if key in s))
            if len(values) > 1:
                listed = f" ({', '.join(values)})" if key != "view_settings" else ""
                notes.append(f"{name}: {key} differs between runs{listed}.")
    return notes


def name_label_free(key: str) -> str:
    """Name a measure that needs no labels; the protocol `retrieval` is another number."""
    return "same-image retrieval" if key == "retrieval" else key.replace("_", " ")


def is_end(name: str) -> bool:
    """Whether this is an end of the interval of a number."""
    return name.endswith(ENDS)


def format_measure(numbers: Mapping[str, Any], name: str) -> str:
    """Format a number with its interval, if it has one: 71.2% (69.1-73.3)."""
    text, interval = format_number(numbers.get(name), name), named_interval(numbers, name)
    if interval is None or not text.endswith("%"):
        return text
    return f"{text} ({100 * interval.low:.1f}-{100 * interval.high:.1f})"


def format_number(value: Any, name: str = "accuracy") -> str:
    """Format a number of a table: accuracies and precisions in per cent, a missing one empty."""
    if value is None or isinstance(value, str):
        return value or ""
    is_share = any(part in name.lower() for part in PERCENT) and 0 <= value <= 1
    return f"{value:.1%}" if is_share else f"{value:.4g}"
