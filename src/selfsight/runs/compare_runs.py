"""Compare runs in one table, from the results in their folders; computes and writes nothing."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import chain, groupby, takewhile
from typing import Any, NamedTuple

from selfsight.command_hint import write_command
from selfsight.errors import UserError
from selfsight.evals.encoder_differences import Difference, paired_differences, unpaired_difference
from selfsight.evals.prediction_scores import named_interval
from selfsight.evals.select_checkpoint import select_checkpoint
from selfsight.run_files.run_folder import Run, group_seeds
from selfsight.run_files.run_results import (
    ANALYSIS,
    COMPARED_SETTINGS,
    find_data_set,
    find_headline,
    find_training_data,
    name_results,
)
from selfsight.runs.build_result import read_per_image

ENDS = ("_low", "_high")  # of the interval of a number
SEEDS = ("_seeds", "_seeds_mean", "_seeds_std")  # of a number over runs that differ in the seed
PERCENT = (
    *("accuracy", "top5", "ap", "precision", "retrieval"),
    *("knn", "linear", "few_labels", "fine_tune"),
)
ANALYSIS_COLUMNS = ("effective_rank", "lidar", "alpha", "alignment", "uniformity")
OVER_SEEDS = (
    "The standard deviation over seeds shows how much a number varies when training is repeated; "
    "an interval shows how much it varies with other test images."
)


class Measure(NamedTuple):
    """A number of a result file, and its column in the table."""

    column: str
    result: str
    key: str


class SeedSpread(NamedTuple):
    """One number of several runs that differ only in the seed.

    It shows the spread of training; the interval of each run shows the spread over test images.
    """

    measure: Measure
    runs: tuple[str, ...]
    values: tuple[float, ...]  # one for each seed

    def numbers(self) -> dict[str, int | float]:
        """Columns that it adds to the record of each run."""
        values = (len(self.values), statistics.mean(self.values), statistics.stdev(self.values))
        return {f"{self.measure.column}{end}": v for end, v in zip(SEEDS, values, strict=True)}

    @property
    def name(self) -> str:
        """The common part of the names of the runs, or all names."""
        length = len(list(takewhile(lambda c: len(set(c)) == 1, zip(*self.runs, strict=False))))
        common = self.runs[0][:length]
        common = common.removesuffix("seed").rstrip("-_. /")
        return f"{common}-*" if len(common) > 2 else ", ".join(self.runs)


class NamedResults(NamedTuple):
    """The results of a run, by names that several runs share."""

    run: Run
    results: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, str]  # their names in the run folder

    def number(self, measure: Measure) -> float | None:
        """One number of the results; None if there is none."""
        value = self.results.get(measure.result, {}).get(measure.key)
        if isinstance(value, Mapping):  # of a measure without labels
            value = value.get("trained")
        return value if isinstance(value, int | float) else None


class Comparison(NamedTuple):
    """A record for each run, notes about the numbers, and the spread over seeds."""

    records: list[dict[str, Any]]
    notes: list[str]
    spreads: list[SeedSpread]


def compare(runs: Sequence[Run]) -> Comparison:
    """Collect a record for each run with a key for each measure, and notes on what differs.

    An accuracy is followed by the ends of its interval, as `knn k20_low` and `knn k20_high`. If
    there are runs of its recipe with other seeds, `knn k20_seeds` is their number, and
    `knn k20_seeds_mean` and `knn k20_seeds_std` are the mean and the standard deviation over them.
    """
    if not runs:
        raise UserError("There is no run to compare. Name one or more.")
    named = read_results(runs)
    measures = {name: _measures(of_run.results) for name, of_run in named.items()}
    numbers = {name: _numbers(of_run.results, measures[name]) for name, of_run in named.items()}
    headlines = list(dict.fromkeys(m for name in named for m in _headlines(measures[name])))
    free = dict.fromkeys(m for of_run in named.values() for m in _label_free(of_run.results))
    every = dict.fromkeys(m for of_run in measures.values() for m in of_run)
    spreads = [s for m in (*every, *free) for s in _spread_over_seeds(m, named)]
    for spread in spreads:
        for name in spread.runs:
            numbers[name] |= spread.numbers()
    columns = list(dict.fromkeys(column for of_run in numbers.values() for column in of_run))
    records = [
        {"run": name, **{column: of_run.get(column) for column in columns}}
        for name, of_run in numbers.items()
    ]
    notes = [*_describe_data_sets(named), *_differences(named)]
    notes += [note for m in headlines for note in _compare_pairs(m, named)]
    if spreads:
        notes.append(OVER_SEEDS)
    return Comparison(records, notes + _best_without_labels(named), spreads)


def read_results(runs: Sequence[Run]) -> dict[str, NamedResults]:
    """Read the results of runs by the run's name; results on other images say so in their names."""
    folders = {run.path.name: run for run in runs}
    if len(folders) < len(runs):
        folders = {str(run.path): run for run in runs}
    saved = {name: run.all_results() for name, run in folders.items()}
    if not any(saved.values()):
        raise UserError(
            "None of these folders has results. Evaluate them first: "
            f"{write_command('evaluate', runs[0], '--labeled', 'DATA')}"
        )
    recipes = {name: run.saved_recipe() for name, run in folders.items()}
    files = name_results(saved, {name: find_training_data(r) for name, r in recipes.items()})
    return {
        name: NamedResults(run, {k: saved[name][v] for k, v in files[name].items()}, files[name])
        for name, run in folders.items()
    }


def compare_two(measure: Measure, a: NamedResults, b: NamedResults) -> Difference | None:
    """The difference of two runs: paired if their test images are the same, else unpaired.

    None if their numbers of classes differ: the accuracies are from different tasks.
    """
    results = [of_run.results[measure.result] for of_run in (a, b)]
    counts = {result.get("settings", {}).get("num_classes") for result in results} - {None}
    if len(counts) > 1:
        return None
    arrays = [of_run.run.arrays(of_run.files[measure.result]) for of_run in (a, b)]
    if arrays[0] and arrays[1] and arrays[0]["fingerprint"] == arrays[1]["fingerprint"]:
        differences = paired_differences(*(read_per_image(of_run) for of_run in arrays if of_run))
        return differences.get(measure.key)
    intervals = [named_interval(result, measure.key) for result in results]
    if intervals[0] is None or intervals[1] is None:
        return None
    n = min(int(result.get("n", 0)) for result in results)
    return unpaired_difference(intervals[0], intervals[1], n)


def _compare_pairs(measure: Measure, named: Mapping[str, NamedResults]) -> list[str]:
    """Compare the run with the highest number with each of the others."""
    numbers = {name: of_run.number(measure) for name, of_run in named.items()}
    scored = {name: number for name, number in numbers.items() if number is not None}
    best, *others = sorted(scored, key=lambda name: -scored[name])
    sentences = []
    for other in others:
        difference = compare_two(measure, named[best], named[other])
        if difference is not None:
            sentences.append(f"{measure.column}: {difference.describe(best, other)}.")
    return sentences


def _spread_over_seeds(measure: Measure, named: Mapping[str, NamedResults]) -> list[SeedSpread]:
    """Find recipes with several seeds that were evaluated in the same way; a seed counts once."""
    found = {name: value for name, r in named.items() if (value := r.number(measure)) is not None}
    recipes = {name: named[name].run.saved_recipe() for name in found}
    results = {name: named[name].results[measure.result] for name in found}
    return [
        SeedSpread(
            measure, tuple(chain(*seeds.values())), tuple(found[s[0]] for s in seeds.values())
        )
        for seeds in group_seeds(recipes, results)
    ]


def _describe_data_sets(named: Mapping[str, NamedResults]) -> list[str]:
    """Name the labeled data sets, if there are several."""
    found = [
        data
        for of_run in named.values()
        for called, file in of_run.files.items()
        if (data := find_data_set(file, of_run.results[called])) and " on " in called
    ]
    sets = {data.fingerprint: data for data in reversed(found)}
    texts = [f"{data.folder}, {data.images:,} images" for data in sets.values()]
    return [f"Data sets: {'; '.join(sorted(texts))}."] if texts else []


def _best_without_labels(named: Mapping[str, NamedResults]) -> list[str]:
    """Name the best run by its feature analysis, if several have one of the same images."""
    analyses = {k: None for of_run in named.values() for k in of_run.results if is_analysis(k)}
    notes = []
    for analysis in analyses:
        runs = [of_run for of_run in named.values() if analysis in of_run.results]
        if len(runs) < 2:
            continue
        records = [
            {k: v for k, v in r.results[analysis].items() if v is None or isinstance(v, float)}
            for r in runs
        ]
        on = analysis.removeprefix(ANALYSIS)
        try:
            choice = select_checkpoint(records, [str(r.run.path) for r in runs])
            notes.append(f"Best without labels{on}: {choice.sentence}")
        except UserError as error:
            notes.append(str(error))
    return notes


def is_analysis(name: str) -> bool:
    """Whether a result is a feature analysis, of any images."""
    return name.split(" on ")[0] == ANALYSIS


def format_records(records: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Format the table: a line for each measure, or for each run if there are more runs.

    Accuracies are in per cent with their intervals; a missing number is an empty cell.
    """
    beside = (*ENDS, *SEEDS)  # shown with a number, or below the table
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


def tabulate_seeds(spreads: Sequence[SeedSpread]) -> list[dict[str, str]]:
    """Tabulate mean and standard deviation over seeds: a line for each recipe and measure."""
    several = len({spread.name for spread in spreads}) > 1
    return [
        {
            **({"runs": spread.name} if several else {}),
            "measure": spread.measure.column,
            "seeds": str(len(spread.values)),
            "mean": format_number(statistics.mean(spread.values), spread.measure.key),
            "std": format_spread(spread),
            "range": " to ".join(
                format_number(end(spread.values), spread.measure.key) for end in (min, max)
            ),
        }
        for spread in spreads
    ]


def format_spread(spread: SeedSpread) -> str:
    """Format the standard deviation over seeds: of shares in points."""
    std = statistics.stdev(spread.values)
    is_share = format_number(spread.values[0], spread.measure.key).endswith("%")
    return f"{100 * std:.1f} points" if is_share else f"{std:.2g}"


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
    for name in filter(is_analysis, results):
        found = results[name]
        numbers |= {f"{name} {key}": found[key] for key in ANALYSIS_COLUMNS if key in found}
    for column, name, key in _label_free(results):
        for end in ("", *ENDS):
            if isinstance(value := results[name][key].get(f"trained{end}"), int | float):
                numbers[f"{column}{end}"] = value
    return numbers


def _label_free(results: Mapping[str, Mapping[str, Any]]) -> list[Measure]:
    """Name the measures without labels, of the trained and the untrained network."""
    measures = []
    for name, result in results.items():
        on = name.removeprefix("label_free")  # " on NAME" of one data set of several
        for key, value in result.items():
            if isinstance(value, Mapping) and isinstance(value.get("trained"), int | float):
                measures.append(Measure(f"{name_label_free(key)}{on}", name, key))
    return measures


def _differences(named: Mapping[str, NamedResults]) -> list[str]:
    """Name the settings in which the runs' results differ."""
    notes = []
    results = [of_run.results for of_run in named.values()]
    for name in dict.fromkeys(name for of_run in results for name in of_run):
        settings = [r[name].get("settings", {}) for r in results if name in r]
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


def format_measure(numbers: Mapping[str, Any], name: str, measure: str = "") -> str:
    """Format a number with its interval, if it has one: 71.2% (69.1-73.3).

    `measure` says what it is, if that is not the name of the number.
    """
    text = format_number(numbers.get(name), measure or name)
    interval = named_interval(numbers, name)
    if interval is None:
        return text
    if not text.endswith("%"):
        return f"{text} ({interval.low:.4g} to {interval.high:.4g})"
    return f"{text} ({100 * interval.low:.1f}-{100 * interval.high:.1f})"


def format_difference(difference: Mapping[str, Any], measure: str) -> str:
    """Format the difference of two networks with its interval: +3.1 (+1.0 to +5.2)."""
    keys = ("difference", "low", "high")
    value, low, high = (
        number if number is None else float(number) for number in map(difference.get, keys)
    )
    if value is None or low is None or high is None:
        return ""
    scale, digits = (100, ".1f") if measure in PERCENT else (1, ".3g")
    return f"{scale * value:+{digits}} ({scale * low:+{digits}} to {scale * high:+{digits}})"


def format_number(value: Any, name: str = "accuracy") -> str:
    """Format a number of a table: accuracies and precisions in per cent, a missing one empty."""
    if value is None or isinstance(value, str):
        return value or ""
    is_share = any(part in name.lower() for part in PERCENT) and 0 <= value <= 1
    return f"{value:.1%}" if is_share else f"{value:.4g}"
