"""Write a run folder as one self-contained HTML file."""

import base64
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from selfsight.errors import UserError, quote_word
from selfsight.outside_code import list_outside_code
from selfsight.report_page import score_figures
from selfsight.report_page.curves import curves
from selfsight.report_page.feature_figures import features
from selfsight.report_page.json_values import TEXTS, Json, Records, finite_items, latest, section
from selfsight.run_files.json_files import to_json, write_file
from selfsight.run_files.run_folder import Run, open_run
from selfsight.run_files.run_results import put_main_first

MAP_SCRIPTS = ("points.js", "coloring.js", "map.js")
SCRIPTS = (
    *("dom.js", "classes.js", "curves.js", "features.js", "images.js"),
    *MAP_SCRIPTS,
    "report.js",
)
NOT_SETTINGS = ("reasons", "versions", "environment", "left_out", "changed")  # of recipe.json
ALWAYS = ("method.name", "backbone.name", "data.path", "epochs", "batch_size", "images", "device")
SHEETS = {"views.png": "image/png", "map.jpg": "image/jpeg", "neighbors.jpg": "image/jpeg"}


def write(run: Run, out: str | Path | None = None) -> Path:
    """Write the page, to `report.html` in the run folder if no file is given; return its path."""
    path = run.report if out is None else Path(out)
    write_file(path, build(run))
    return path


def build(run: Run, *, served: bool = False) -> str:
    """Build the page; if it is `served`, readers can query it with their own images."""
    check_links(run)
    content = _content(run)
    scripts = (*SCRIPTS[:-1], "query.js", SCRIPTS[-1]) if served else SCRIPTS
    return build_page(
        "report.html",
        content,
        scripts,
        connect=" connect-src 'self';" if served else "",
        query=read_part("query.html") if served else "",
        link='<a href="#query">Your image</a>' if served else "",
        sentence=html.escape(content["verdict"]["sentence"]),
    )


def build_page(
    body: str,
    content: Mapping[str, Json],
    scripts: Sequence[str],
    *,
    kind: str = "report",
    **texts: str,
) -> str:
    """Build a page from a body and the frame of all pages; `texts` replace its placeholders.

    All are replaced in one pass, so that placeholders inside inserted texts stay unchanged.
    """
    texts = {
        **{"connect": "", "sheets": "", "style": "", "kind": kind, "class": Path(body).stem},
        "title": html.escape(content["title"]),
        "data": to_script_json(content),
        "script": "\n".join(map(read_part, scripts)),
        **texts,
    }
    texts["style"] = read_part("style.css") + texts["style"]
    page = read_part("page_frame.html").replace("{{body}}", read_part(body))
    return re.sub(r"\{\{(\w+)\}\}", lambda match: texts[match[1]], page)


def summary(run: Run) -> dict[str, Any]:
    """Summarize verdict, key figures and paths as one JSON value."""
    recipe, records, results, main = _read(run)
    progress = finite_items({key: latest(records, key) for key in ("step", "epoch", "loss")})
    files = {"recipe": run.recipe_path, "log": run.log_path, "report": run.report}
    folders = {"checkpoints": run.checkpoints, "results": run.results, "images": run.images}
    accuracies = score_figures.accuracies(results, records)
    bars = [bar for bar in score_figures.bars(accuracies, results, main) if bar["low"] is not None]
    values = {
        "run": str(run.path),
        **describe_verdict(recipe, records, results, run.events()),
        "figures": progress | accuracies,
        "intervals": {bar["key"]: [bar["low"], bar["high"]] for bar in bars},
        "label_free": section(results, "label_free"),
        "paths": {name: str(path) for name, path in (files | folders).items() if path.exists()},
    }
    return to_json(values)


class Contents(NamedTuple):
    """What the files of a run hold."""

    recipe: dict[str, Json]
    records: Records
    results: dict[str, Json]  # of the main data set by protocol, of others `knn on NAME`
    main: str  # name of that data set, if there are several


def _read(run: Run) -> Contents:
    recipe = open_run(run).saved_recipe()
    path = str(section(recipe, "data").get("path", ""))
    return Contents(recipe, run.records(), *put_main_first(run.all_results(), path))


def _content(run: Run) -> dict[str, Any]:
    """Collect the content of the page, in its order."""
    recipe, records, results, main = _read(run)
    accuracies = score_figures.accuracies(results, records)
    before = "start encoder" if section(recipe, "start").get("name") else score_figures.UNTRAINED
    return {
        "title": run.path.resolve().name,
        "seconds": latest(records, "time"),
        "verdict": describe_verdict(recipe, records, results, run.events()),
        "before": before,
        "bars": score_figures.bars(accuracies, results, main, before=before),
        "differences": score_figures.differences(results, before=before),
        "classes": score_figures.classes(results),
        "label_free": score_figures.label_free(results),
        "results": score_figures.plain_results(results),
        "curves": curves(records, accuracies, before=before),
        "features": [chart for data in list_analyses(run) for chart in features(*data)],
        "sheets": {Path(f).stem: _sheet(run, f, mime_type) for f, mime_type in SHEETS.items()},
        "recipe": {k: v for k, v in recipe.items() if k not in NOT_SETTINGS},
        "changed": _changed(recipe),
        "left_out": section(recipe, "left_out"),
        "reasons": section(recipe, "reasons"),
        "versions": {**section(recipe, "versions"), **section(recipe, "environment")},
        "commands": _commands(run, recipe),
    }


def describe_verdict(
    recipe: Json, records: Records, results: Json, events: Records
) -> dict[str, Any]:
    """State, sentence and evidence of the verdict; a placeholder if there is none yet."""
    verdict = section(results, "verdict")
    if verdict.get("sentence"):
        rows = [row for row in verdict.get("evidence") or [] if isinstance(row, Mapping)]
        state = str(verdict.get("verdict") or "unclear")
        return {"verdict": state, "sentence": str(verdict["sentence"]), "evidence": rows}
    if events and events[-1]["event"] == "diverged":
        sentence = f"The run diverged. {events[-1].get('sentence') or ''}".strip()
        return {"verdict": "diverged", "sentence": sentence, "evidence": []}
    epoch, position = latest(records, "epoch"), "nothing has been logged"
    if epoch is not None:
        total = f" of {recipe['epochs']}" if recipe.get("epochs") else ""
        position = f"the last record is from epoch {epoch:.4g}{total}"
    sentence = f"No verdict yet: {position}. The run is not finished, or was stopped."
    if epoch is not None and epoch >= (recipe.get("epochs") or math.inf):
        sentence = f"No verdict: {position}, and nothing has judged the run."
    return {"verdict": "running", "sentence": sentence, "evidence": []}


def _changed(recipe: dict[str, Json]) -> dict[str, Any]:
    """Settings that differ from their defaults or were chosen; all, if defaults are not known."""
    names = recipe.get("changed")
    if not isinstance(names, list):
        return {}
    chosen = {*map(str, names), *section(recipe, "reasons"), *ALWAYS}
    settings = {k: v for k, v in recipe.items() if k not in NOT_SETTINGS}

    def select(branch: Any, path: str) -> Any:
        items = enumerate(branch) if isinstance(branch, list) else branch.items()
        kept = {}
        for key, value in items:
            here = f"{path}.{key}".lstrip(".")
            name = f"{int(key) + 1}" if isinstance(branch, list) else key
            if here in chosen:
                kept[name] = value
            elif isinstance(value, dict | list) and (inside := select(value, here)):
                kept[name] = inside
        return kept

    return select(settings, "")


def check_links(run: Run) -> None:
    """Raise a UserError for a link out of the folder: the page would publish its target."""
    root = run.path.resolve()
    for path in (run.recipe_path, run.log_path, *run.results.rglob("*"), *run.images.rglob("*")):
        if not path.resolve().is_relative_to(root):
            raise UserError(
                f"{path} is a link to {path.resolve()}, outside of the run folder, and the report "
                "would contain what it leads to. Replace the link by a copy if you want that."
            )


def list_analyses(run: Run) -> list[tuple[Any, str]]:
    """Figures of the feature analysis, with the data set if there are several."""
    paths = [*run.images.glob("analysis.json"), *sorted(run.images.glob("*/analysis.json"))]
    names = [path.relative_to(run.images).with_suffix("").as_posix() for path in paths]
    labels = [name.rpartition("/")[0] or "training images" for name in names]
    return [
        (run.image_json(name), label if len(names) > 1 else "")
        for name, label in zip(names, labels, strict=True)
    ]


def _sheet(run: Run, file: str, mime_type: str) -> dict[str, Any] | None:
    """Read the layout of an image sheet, with the sheet itself as a data URL."""
    sheet = run.images / file
    layout = run.image_json(sheet.stem)
    if not isinstance(layout, dict) or not sheet.exists():
        return None
    code = base64.b64encode(sheet.read_bytes()).decode("ascii")
    return layout | {"sheet": f"data:{mime_type};base64,{code}"}


def _commands(run: Run, recipe: Mapping[str, Json]) -> list[dict[str, str]]:
    names = {"SHELL": run.shell_path, "PYTHON": repr(str(run.path)), " TRUST": ""}
    if isinstance(images := section(recipe, "data").get("path"), str) and images:
        names["IMAGES"] = quote_word(images)
    if list_outside_code(recipe):
        names |= {"PYTHON": f"{names['PYTHON']}, trust=True", " TRUST": " --trust"}
    pattern = "|".join(names)
    return [
        command | {"code": re.sub(pattern, lambda match: names[match[0]], command["code"])}
        for command in TEXTS["commands"]
    ]


def to_script_json(value: Json) -> str:
    """Encode as ASCII JSON, with the characters of HTML markup escaped."""
    text = json.dumps(to_json(value), allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&]", lambda sign: f"\\u{ord(sign[0]):04x}", text)


def read_part(name: str) -> str:
    """Read a template, style or script of the pages."""
    return resources.files("selfsight.report_page").joinpath(name).read_text("utf-8")
