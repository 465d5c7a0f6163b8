"""Read numbers and sections from any JSON of a run, and the texts of texts.toml."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from selfsight.run_files.json_files import is_finite

Json = Any  # a value of json.loads
Records = Sequence[Mapping[str, Json]]
Number = int | float

TEXTS: dict[str, list[dict[str, Json]]] = tomllib.loads(
    resources.files("selfsight.report_page").joinpath("texts.toml").read_text("utf-8")
)


def finite(values: Iterable[Json]) -> list[Number | None]:
    """Replace everything that is not a finite number by None."""
    return [v if is_finite(v) else None for v in values]


def number(value: Json) -> Number | None:
    """Return a finite number, or None for anything else."""
    return finite([value])[0]


def section(value: Json, *keys: str) -> dict[str, Json]:
    """Return the dictionary under these keys, or an empty one."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return dict(value) if isinstance(value, Mapping) else {}


def latest(records: Records, key: str) -> Number | None:
    """Return the newest finite value of one key, or None."""
    values = (number(record.get(key)) for record in reversed(records))
    return next((value for value in values if value is not None), None)


def finite_items(values: Mapping[str, Json]) -> dict[str, Number]:
    """Select the items whose value is a finite number."""
    return {key: n for key, value in values.items() if (n := number(value)) is not None}


def round_number(value: Number) -> Number:
    """Round to six digits: more are not visible and would double the size of the page."""
    return value if isinstance(value, int) else float(f"{value:.6g}")
