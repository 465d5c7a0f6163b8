"""Compare runs in one table, from the results in their folders; computes and writes nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from selfsight.errors import UserError
from selfsight.evals.model_selection import select_run
from selfsight.run_folder import Run

HEADLINES = ("accuracy", "map", "mAP", "box_AP", "AP")  # the first that a result has
PERCENT = ("accuracy", "top5", "ap", "retrieval", "knn", "linear", "few_labels", "fine_tune")
ANALYSIS_COLUMNS = ("effective_rank", "lidar", "alpha", "alignment", "uniformity")
# Settings that must agree for numbers to be comparable.
COMPARED_SETTINGS = ("data", "test_data", "train", "test", "features", "view", "view_settings")


def compare(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], list[str]]:
    """Collect a record for each run with a key for each measure, and notes on what differs."""
    results = {run.path.name: run.all_results() for run in runs}
    if len(results) < len(runs):
        results = {str(run.path): run.all_results() for run in runs}
    if not any(results.values()):
        raise UserError(
            "None of these folders has results. Evaluate them first: "
            f"selfsight evaluate {runs[0].path} --labeled DATA"
        )
    numbers = {name: _numbers(of_run) for name, of_run in results.items()}
    columns = list(dict.fromkeys(column for of_run in numbers.values() for column in of_run))
    records = [
        {"run": name, **{column: of_run.get(column) for column in columns}}
        for name, of_run in numbers.items()
    ]
    return records, _differences(results) + _best_without_labels(runs)


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

    Accuracies are in per cent; a missing number is an empty cell.
    """
    measures = [name for name in records[0] if name != "run"]
    if len(records) > len(measures):
        return [{k: format_number(value, k) for k, value in record.items()} for record in records]
    return [
        {"measure": name, **{str(r["run"]): format_number(r[name], name) for r in records}}
        for name in measures
    ]


def find_headline(result: Mapping[str, Any]) -> tuple[str, float] | None:
    """Find the main number of a result, with its name."""
    for name in HEADLINES:
        if isinstance(value := result.get(name), int | float):
            return name, float(value)
    return None


def _numbers(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Collect the column and the number of every result."""
    numbers: dict[str, float] = {}
    for name, result in results.items():
        per_k = [key for key in result if key.startswith("accuracy_k")]
        for key in per_k:
            numbers[f"{name} {key.removeprefix('accuracy_')}"] = result[key]
        if not per_k and (headline := find_headline(result)):
            column = name if headline[0] == "accuracy" else f"{name} {headline[0]}"
            numbers[column] = headline[1]
        if name == "analysis":
            numbers |= {f"{name} {key}": result[key] for key in ANALYSIS_COLUMNS if key in result}
        for key, value in result.items():
            if isinstance(value, Mapping) and isinstance(value.get("trained"), int | float):
                numbers[key.replace("_", " ")] = value["trained"]
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


def format_number(value: Any, name: str = "accuracy") -> str:
    """Format a number of a table: accuracies and precisions in per cent, a missing one empty."""
    if value is None or isinstance(value, str):
        return value or ""
    is_share = any(part in name.lower() for part in PERCENT) and 0 <= value <= 1
    return f"{value:.1%}" if is_share else f"{value:.4g}"
