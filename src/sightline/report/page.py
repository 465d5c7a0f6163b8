"""A run folder as one HTML file that needs nothing else."""

import base64
import html
import json
import math
import os
import re
import shlex
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from sightline.errors import UserError
from sightline.report import figures
from sightline.report.figures import Json, Records, logged, number, section
from sightline.runs import Run, read_json

SCRIPTS = ("dom.js", "curves.js", "pictures.js", "map.js", "script.js")
SHEETS = {"views": "png", "map": "jpg", "neighbours": "jpg"}
MIME = {"png": "image/png", "jpg": "image/jpeg"}


def write(run: Run) -> Path:
    """Write `report.html` in the run folder and say where it is."""
    content = _content(run)
    parts = {
        "title": html.escape(content["title"]),
        "sentence": html.escape(content["verdict"]["sentence"]),
        "style": _file("style.css"),
        "data": _harmless(content),
        "script": "\n".join(_file(name) for name in SCRIPTS),
    }
    # one pass, so that nothing inside a part is taken for a place to fill
    page = re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _file("template.html"))
    beside = run.report.with_name("report.html.part")
    beside.write_text(page, encoding="utf-8", errors="replace")  # names may hold lone surrogates
    os.replace(beside, run.report)
    return run.report


def summary(run: Run) -> dict[str, Any]:
    """Verdict, key figures and paths as one JSON value."""
    recipe, records, results = _read(run)
    latest = {k: values[-1] for k in ("step", "epoch", "loss") if (values := logged(records, k))}
    places = {
        "recipe": run.recipe_path,
        "log": run.log_path,
        "checkpoints": run.checkpoints,
        "results": run.results,
        "pictures": run.pictures,
        "report": run.report,
    }
    found = {
        "run": str(run.path),
        **_verdict(recipe, records, results),
        "figures": latest | figures.accuracies(results, records),
        "label_free": section(results, "label_free"),
        "paths": {name: str(place) for name, place in places.items() if place.exists()},
    }
    return _finite(found)


def _read(run: Run) -> tuple[dict[str, Json], Records, dict[str, Json]]:
    recipe = read_json(run.recipe_path)
    if not isinstance(recipe, dict):
        raise UserError(
            f"{run.path} is not a run folder: it holds no recipe.json. "
            "Give the folder that `sightline pretrain` wrote (its `--out`)."
        )
    return recipe, run.records(), run.results_all()


def _content(run: Run) -> dict[str, Any]:
    """All that the page shows, in the order of the page."""
    recipe, records, results = _read(run)
    accuracies = figures.accuracies(results, records)
    return {
        "title": run.path.resolve().name,
        "seconds": (logged(records, "time") or [None])[-1],
        "verdict": _verdict(recipe, records, results),
        "gain": figures.gain(accuracies),
        "bars": figures.bars(accuracies),
        "label_free": figures.label_free(results),
        "results": {name: value for name, value in results.items() if name != "verdict"},
        "curves": figures.curves(records, accuracies),
        "sheets": {name: _sheet(run, name, suffix) for name, suffix in SHEETS.items()},
        "recipe": {k: v for k, v in recipe.items() if k not in ("reasons", "versions")},
        "reasons": section(recipe, "reasons"),
        "versions": section(recipe, "versions"),
        "commands": _commands(run),
    }


def _verdict(recipe: Json, records: Records, results: Json) -> dict[str, Any]:
    found = section(results, "verdict")
    if found.get("sentence"):
        rows = [row for row in found.get("evidence") or [] if isinstance(row, Mapping)]
        state = str(found.get("verdict") or "unclear")
        return {"verdict": state, "sentence": str(found["sentence"]), "evidence": rows}
    where = "nothing is logged so far"
    if epochs := logged(records, "epoch"):
        whole = f" of {recipe['epochs']}" if number(recipe.get("epochs")) else ""
        where = f"the last record is from epoch {epochs[-1]:.4g}{whole}"
    sentence = f"No verdict yet: {where}. The run is still going, or was stopped before its end."
    return {"verdict": "running", "sentence": sentence, "evidence": []}


def _sheet(run: Run, name: str, suffix: str) -> dict[str, Any] | None:
    """Where each tile lies, with the sheet of tiles itself as a data address."""
    layout, sheet = run.picture_json(name), run.pictures / f"{name}.{suffix}"
    if not isinstance(layout, dict) or not sheet.exists():
        return None
    code = base64.b64encode(sheet.read_bytes()).decode("ascii")
    return layout | {"sheet": f"data:{MIME[suffix]};base64,{code}"}


def _commands(run: Run) -> list[dict[str, str]]:
    names = {"SHELL": shlex.quote(str(run.path)), "PYTHON": repr(str(run.path))}
    return [
        words | {"code": re.sub("SHELL|PYTHON", lambda place: names[place[0]], words["code"])}
        for words in figures.WORDS["commands"]
    ]


def _finite(value: Json) -> Json:
    """The same value with null for what JSON cannot say: NaN and the infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def _harmless(value: Json) -> str:
    """JSON that no HTML parser takes for markup; json itself escapes all that is not ASCII."""
    text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&]", lambda sign: f"\\u{ord(sign[0]):04x}", text)


def _file(name: str) -> str:
    return resources.files("sightline.report").joinpath(name).read_text("utf-8")
