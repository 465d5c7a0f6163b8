"""Write the page of `selfsight explore`: a map of images, in one self-contained HTML file."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int64, Integer

from selfsight.report_page.page import MAP_SCRIPTS, build_page, read_part
from selfsight.run_files.json_files import explain_write_errors, replace_file

SCRIPTS = ("dom.js", *MAP_SCRIPTS, "lasso.js", "explore.js")


class Group(NamedTuple):
    """A grouping of the images: the group number of each image (-1 for none), and group names."""

    title: str
    of: Integer[np.ndarray, " n"]
    names: Sequence[str]


class MapPage(NamedTuple):
    """What the page shows, without the thumbnails."""

    title: str
    names: Sequence[str]
    root: str | None
    paths: Sequence[str | None] | None
    points: Float[np.ndarray, "n 2"]
    groups: Sequence[Group]
    outliers: Float[np.ndarray, " n"]
    method: str
    about: str


class Thumbnails(NamedTuple):
    """Sheets of square thumbnails in rows, and the thumbnail of each image (-1 for none)."""

    side: int
    columns: int
    per_sheet: int
    sheets: Sequence[bytes]
    of: Int64[np.ndarray, " n"]
    shown: int


def measure_page(content: MapPage) -> int:
    """Bytes of the page without thumbnails."""
    none = Thumbnails(0, 1, 1, (), np.full(len(content.names), -1), 0)
    return len(_build_page(content, none).encode())


def write_page(path: Path, content: MapPage, thumbnails: Thumbnails) -> int:
    """Write the page; returns its size in bytes."""
    page = _build_page(content, thumbnails).encode()
    with explain_write_errors(path), replace_file(path) as file:
        file.write(page)
    return len(page)


def _build_page(content: MapPage, thumbnails: Thumbnails) -> str:
    data: dict[str, Any] = {
        "title": content.title,
        "names": list(content.names),
        "root": content.root,
        "paths": content.paths,
        "x": _pack(content.points[:, 0], "<f4"),
        "y": _pack(content.points[:, 1], "<f4"),
        "groups": [
            {"title": g.title, "of": _pack(g.of, "<i4"), "names": list(g.names)}
            for g in content.groups
        ],
        "outliers": _pack(content.outliers, "<f4"),
        "method": content.method,
        "about": content.about,
        "tile": thumbnails.side,
        "columns": thumbnails.columns,
        "per_sheet": thumbnails.per_sheet,
        "tiles": _pack(thumbnails.of, "<i4"),
    }
    codes = [base64.b64encode(sheet).decode("ascii") for sheet in thumbnails.sheets]
    sheets = [
        f'<script type="text/plain" id="sheet-{i}">{code}</script>' for i, code in enumerate(codes)
    ]
    return build_page(
        "explore.html",
        data,
        SCRIPTS,
        kind="explore",
        style=read_part("explore.css"),
        sheets="\n".join(sheets),
    )


def _pack(values: np.ndarray, dtype: str) -> str:
    """Encode numbers as base64, a third of the size of their digits."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=dtype).tobytes()).decode("ascii")
