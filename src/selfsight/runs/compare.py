"""One table over several runs, from what their folders hold; nothing is computed or written."""

from collections.abc import Mapping, Sequence
from typing import Any

from selfsight.errors import UserError
from selfsight.evals.model_selection import select_run
from selfsight.run_folder import Run

# What stands for a result where it has several numbers, the first that it has.
HEADLINES = ("accuracy", "map", "mAP", "box_AP", "AP")
SHARES = ("accuracy", "top5", "ap", "retrieval", "knn", "linear", "few_labels", "fine_tune")
ANALYZED = ("effective_rank", "lidar", "alpha", "alignment", "uniformity")
# What must agree for numbers to be comparable.
SIDES = ("data", "test_data", "train", "test", "features", "view", "drawn")


def compare(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for each run with a column for each measure, and sentences on what differs."""
    results = {run.path.name: run.results_all() for run in runs}
    if len(results) < len(runs):
        results = {str(run.path): run.results_all() for run in runs}
    if not any(results.values()):
        raise UserError(
            "None of these folders has results. Measure them first: "
            f"selfsight evaluate {runs[0].path} --labeled DATA"
        )
    numbers = {name: _numbers(found) for name, found in results.items()}
    columns = list(dict.fromkeys(column for row in numbers.values() for column in row))
    rows = [
        {"run": name, **{column: row.get(column) for column in columns}}
        for name, row in numbers.items()
    ]
    return rows, _differences(results) + _choice(runs)


def _choice(runs: Sequence[Run]) -> list[str]:
    """Which run the measures without labels prefer, where two or more have them."""
    looked = [run for run in runs if run.result("analysis")]
    if len(looked) < 2:
        return []
    try:
        return [f"Best without labels: {select_run(looked).sentence}"]
    except UserError as error:
        return [str(error)]


def shown(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The same for a person: a row for each measure unless there are more runs than measures.

    Shares in per cent, an empty cell for what is lacking.
    """
    measures = [name for name in rows[0] if name != "run"]
    if len(rows) > len(measures):
        return [{name: in_words(value, name) for name, value in row.items()} for row in rows]
    return [
        {"measure": name, **{str(row["run"]): in_words(row[name], name) for row in rows}}
        for name in measures
    ]


def headline(result: Mapping[str, Any]) -> tuple[str, float] | None:
    """The number that a result is known by, and its name."""
    for name in HEADLINES:
        if isinstance(value := result.get(name), int | float):
            return name, float(value)
    return None


def _numbers(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Column and number of every result."""
    found: dict[str, float] = {}
    for name, result in results.items():
        several = [key for key in result if key.startswith("accuracy_k")]
        for key in several:
            found[f"{name} {key.removeprefix('accuracy_')}"] = result[key]
        if not several and (best := headline(result)):
            found[name if best[0] == "accuracy" else f"{name} {best[0]}"] = best[1]
        if name == "analysis":
            found |= {f"{name} {key}": result[key] for key in ANALYZED if key in result}
        for key, value in result.items():
            if isinstance(value, Mapping) and isinstance(value.get("trained"), int | float):
                found[key.replace("_", " ")] = value["trained"]
    return found


def _differences(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    said = []
    for name in dict.fromkeys(name for found in results.values() for name in found):
        settings = [found[name].get("settings", {}) for found in results.values() if name in found]
        for side in SIDES:
            values = list(dict.fromkeys(str(s[side]) for s in settings if side in s))
            if len(values) > 1:
                shown = f" ({', '.join(values)})" if side != "drawn" else ""
                said.append(f"{name}: {side} differs between runs{shown}.")
    return said


def in_words(value: Any, name: str = "accuracy") -> str:
    """A number as a table shows it: accuracies and precisions in per cent, nothing for none."""
    if value is None or isinstance(value, str):
        return value or ""
    share = any(word in name.lower() for word in SHARES) and 0 <= value <= 1
    return f"{value:.1%}" if share else f"{value:.4g}"
