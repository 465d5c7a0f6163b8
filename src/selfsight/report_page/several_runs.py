"""One page about several runs: overlaid curves, results with intervals, and differing settings."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from selfsight.errors import UserError
from selfsight.report_page.curves import MAX_POINTS, downsample, expand_layers
from selfsight.report_page.feature_figures import features
from selfsight.report_page.json_values import (
    TEXTS,
    Json,
    Number,
    Records,
    latest,
    number,
    round_number,
    section,
)
from selfsight.report_page.page import build_page, check_links, describe_verdict, list_analyses
from selfsight.report_page.score_figures import read_interval
from selfsight.run_files.json_files import write_file
from selfsight.run_files.run_folder import Run, group_seeds, open_run, select_settings
from selfsight.run_files.run_results import find_headline, find_training_data, name_results

SCRIPTS = ("dom.js", "curves.js", "features.js", "several_runs.js")
MAX_RUNS = 28  # seven colors, solid and in three dashed styles
# Of a record: what the axes show, what is counted elsewhere, and what is the same in every record.
NOT_CURVES = {
    *("step", "epoch", "time", "chance_loss", "first_step", "skipped_steps", "online_knn_dips"),
    "compiled_from_step",
}
HISTOGRAMS = ("similarity", "variance")


class RunContent(NamedTuple):
    """What one of the runs holds."""

    name: str
    recipe: dict[str, Json]
    records: Records
    results: dict[str, Json]  # by names that the runs share
    charts: list[Json]  # of its feature analysis
    events: Records


def write_several(runs: Sequence[Run], out: str | Path | None = None) -> tuple[Path, list[str]]:
    """Write the page; return its path and a sentence about each problem of a run.

    The default file is comparison.html beside the runs, or in this folder if they are in several.
    """
    path = default_page(runs) if out is None else Path(out)
    if len(runs) > MAX_RUNS:
        raise UserError(f"{len(runs)} runs are too many for one page. Give at most {MAX_RUNS}.")
    folders = [run.path.resolve() for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        if folders.count(folder) > 1:
            raise UserError(f"{run.path} is given twice. Name each run once.")
    contents, problems = _read_runs(runs)
    if not contents:
        raise UserError(" ".join(problems))
    content = _content(contents, problems)
    write_file(path, build_page("several_runs.html", content, SCRIPTS))
    return path, problems


def _read_runs(runs: Sequence[Run]) -> tuple[list[RunContent], list[str]]:
    """Read the intact runs; describe damaged runs, and runs on other images, in a sentence each."""
    names = [run.path.resolve().name for run in runs]
    names = [n if names.count(n) == 1 else str(r.path) for n, r in zip(names, runs, strict=True)]
    read: dict[str, tuple[Any, ...]] = {}
    problems = []
    for name, run in zip(names, runs, strict=True):
        try:
            check_links(run)
            recipe = open_run(run).saved_recipe()
            charts = [chart for data in list_analyses(run) for chart in features(*data)]
            read[name] = (recipe, run.records(), run.all_results(), charts, run.events())
        except (UserError, OSError) as error:
            problems.append(f"Skipped {name}: {error}")
    trained_on = {name: find_training_data(recipe) for name, (recipe, *_) in read.items()}
    first = next(iter(trained_on.items()), None)
    for name, data in trained_on.items():
        if first and data.fingerprint != first[1].fingerprint:
            problems.append(
                f"{name} was trained on other images ({data.name}, {data.images:,}) than "
                f"{first[0]} ({first[1].name}, {first[1].images:,}): their losses and ranks are "
                "not comparable."
            )
    files = name_results({name: found[2] for name, found in read.items()}, trained_on)
    contents = []
    for name, (recipe, records, results, charts, events) in read.items():
        called = {label: results[file] for label, file in files[name].items()}
        contents.append(RunContent(name, recipe, records, called, charts, events))
    return contents, problems


def _content(runs: Sequence[RunContent], problems: list[str]) -> dict[str, Any]:
    measures = _measures(runs)
    return {
        "title": f"{len(runs)} runs" if len(runs) > 1 else runs[0].name,
        "problems": problems,
        "runs": [_about(run) for run in runs],
        "measures": measures,
        "seeds": _spread_over_seeds(runs, measures),
        "settings": _differing_settings(runs),
        "curves": _curves(runs),
        "histograms": _histograms(runs),
        "against_time": _against_time(runs, measures),
    }


def _about(run: RunContent) -> dict[str, Any]:
    verdict = describe_verdict(run.recipe, run.records, _own(run.results, "verdict"), run.events)
    recipe = run.recipe
    return {
        "name": run.name,
        "method": section(recipe, "method").get("name"),
        "seed": recipe.get("seed"),
        "epochs": recipe.get("epochs"),
        "seconds": latest(run.records, "time"),
        "verdict": verdict["verdict"],
        "sentence": verdict["sentence"],
    }


def _own(results: Mapping[str, Json], name: str) -> dict[str, Json]:
    """A result of the run by its plain name, even if the runs have different images."""
    found = (r for called, r in results.items() if called.split(" on ")[0] == name)
    return {name: next(found, {})}


def _measures(runs: Sequence[RunContent]) -> list[dict[str, Any]]:
    """Collect every number of the runs, with its interval and number of images."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for i, run in enumerate(runs):
        for called, result in run.results.items():
            for name, unit, cell in _numbers(called, section(result)):
                row = rows.setdefault((name, unit), {"name": name, "unit": unit, "result": called})
                row.setdefault("cells", [None] * len(runs))[i] = cell
    free = {text["name"] for text in TEXTS["label_free"]}
    return sorted(rows.values(), key=lambda row: row["name"].split(" on ")[0] in free)


def _numbers(called: str, result: dict[str, Json]) -> list[tuple[str, str, dict[str, Json]]]:
    """Name, unit and interval of the numbers of a result: every k of kNN, else the main number."""
    protocol, _, data = called.partition(" on ")
    on = f" on {data}" if data else ""
    keys = [
        k for k in result if k.startswith("accuracy_k") and k.removeprefix("accuracy_k").isdigit()
    ]
    headline = find_headline(result)
    keys = keys or ([headline[0]] if headline else [])
    found = []
    for key in keys:
        end = key.removeprefix("accuracy").replace("_", " ")
        cell = read_interval(result, key) | {"n": number(result.get("n"))}
        if cell["value"] is not None:
            found.append((f"{protocol}{end}{on}", "percent", cell))
    if protocol == "label_free":
        for text in TEXTS["label_free"]:
            pair = section(result, text["key"])
            cell = read_interval(pair, "trained")
            cell["n"] = number(section(result, "settings").get("images"))
            if cell["value"] is not None:
                found.append((f"{text['name']}{on}", text.get("unit", "number"), cell))
    return found


def _spread_over_seeds(
    runs: Sequence[RunContent], measures: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Mean and standard deviation of each number over runs that differ only in the seed."""
    spreads = []
    for measure in measures:
        cells = zip(runs, measure["cells"], strict=True)
        values = {run.name: cell["value"] for run, cell in cells if cell is not None}
        found = [run for run in runs if run.name in values]
        results = {run.name: run.results[measure["result"]] for run in found}
        for seeds in group_seeds({run.name: run.recipe for run in found}, results):
            firsts = [names[0] for names in seeds.values()]  # a seed counts once
            of_seeds = [values[name] for name in firsts]
            spreads.append(
                {
                    "runs": firsts,
                    "name": measure["name"],
                    "unit": measure["unit"],
                    "n": len(firsts),
                    "mean": statistics.mean(of_seeds),
                    "std": statistics.stdev(of_seeds),
                }
            )
    return spreads


def _differing_settings(runs: Sequence[RunContent]) -> list[dict[str, Any]]:
    """The settings in which the recipes differ, with the value of each run."""
    flat = [_flatten(select_settings(run.recipe, with_seed=True)) for run in runs]
    names = dict.fromkeys(name for settings in flat for name in settings)
    rows = [
        {"name": name, "values": [settings.get(name, "") for settings in flat]} for name in names
    ]
    return [row for row in rows if len(set(row["values"])) > 1]


def _flatten(value: Json, path: str = "") -> dict[str, str]:
    """Settings by their flags, without the fingerprints of other data sets."""
    if isinstance(value, dict | list) and value:
        items = enumerate(value) if isinstance(value, list) else value.items()
        found: dict[str, str] = {}
        for key, inner in items:
            found |= _flatten(inner, f"{path}.{key}".lstrip("."))
        return found
    return {path: value if isinstance(value, str) else json.dumps(value)}


def _curves(runs: Sequence[RunContent]) -> list[dict[str, Any]]:
    """A chart for each key of the logs, with the points of every run that has it."""
    every = [record for run in runs for record in (*run.records[:1], *run.records[-1:])]
    every += [r for run in runs for r in run.records if "online_knn" in r][:1]
    texts = expand_layers(TEXTS["curves"], every)
    named = {text["key"] for text in texts}
    others = dict.fromkeys(key for record in every for key in record if key not in named)
    for key in (key for key in others if key not in NOT_CURVES):
        texts.append({"key": key, "title": key.replace("_", " ").capitalize(), "meaning": ""})
    most = max(200, MAX_POINTS // len(runs))
    charts = []
    for text in texts:
        series = []
        for i, run in enumerate(runs):
            rows = (
                (number(r.get("step")), number(r.get("epoch")), number(r.get(text["key"])), r)
                for r in run.records
            )
            known = [
                (step, epoch, value, number(r.get("time")))
                for step, epoch, value, r in rows
                if step is not None and value is not None
            ]
            if known:
                series.append({"run": i, "points": [_round(p) for p in downsample(known, most)]})
        if series:
            chart = {k: v for k, v in text.items() if k not in ("absent", "every_record")}
            charts.append(chart | {"series": series, "meaning": _shorten(text["meaning"])})
    return charts


def _shorten(meaning: str) -> str:
    """Remove sentences about marks that only the figure of a single run has."""
    sentences = meaning.split(". ")
    marks = ("dashed", "red circle")
    kept = [text for text in sentences if not any(mark in text for mark in marks)]
    return ". ".join(kept).rstrip(".") + "." if kept and kept[0] else ""


def _round(point: Sequence[Number | None]) -> list[Number | None]:
    return [None if value is None else round_number(value) for value in point]


def _histograms(runs: Sequence[RunContent]) -> list[dict[str, Any]]:
    """Histograms of the feature analyses: one chart per layer, with all runs."""
    charts: dict[str, dict[str, Any]] = {}
    for i, run in enumerate(runs):
        for chart in run.charts:
            for one in chart["series"] if chart["key"] in HISTOGRAMS else ():
                title = f"{chart['title']}, {one['name']}"
                shared = charts.setdefault(title, chart | {"title": title, "series": []})
                total = math.fsum(count for _, count in one["points"])
                points = [[edge, round_number(count / total)] for edge, count in one["points"]]
                shared["series"].append({"run": i, "points": points, "steps": True})
    return [chart for chart in charts.values() if chart["series"]]


def _against_time(
    runs: Sequence[RunContent], measures: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Each accuracy against the seconds of training, if two or more runs have it."""
    seconds = [latest(run.records, "time") for run in runs]
    charts = []
    free = {text["name"] for text in TEXTS["label_free"]}
    for measure in (m for m in measures if m["name"].split(" on ")[0] not in free):
        points = [
            {"run": i, "seconds": seconds[i], **cell}
            for i, cell in enumerate(measure["cells"])
            if cell is not None and seconds[i]
        ]
        if len(points) > 1:
            charts.append({"name": measure["name"], "points": points})
    return charts


def default_page(runs: Sequence[Run]) -> Path:
    """Default file of the page: beside the runs if they are in one folder."""
    parents = {run.path.parent for run in runs}
    return (parents.pop() if len(parents) == 1 else Path()) / "comparison.html"
