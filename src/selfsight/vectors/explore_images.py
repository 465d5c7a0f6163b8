"""Explore a source: write a page with a map of all its images, to select groups by hand."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps

from selfsight.data import Source
from selfsight.data.decoders.decode_workers import decode_images
from selfsight.data.eval_transform import EvalTransform
from selfsight.data.sources.source import clean
from selfsight.errors import UserError
from selfsight.report_page.explore_page import Group, MapPage, Thumbnails, measure_page, write_page
from selfsight.runs.image_sheets import BACKGROUND, build_sheet, to_bytes, to_image
from selfsight.vectors.map_layout import lay_out
from selfsight.vectors.search_images import Vectors, describe_not_listed, fits_list

SIDES = (96, 64, 48, 32, 24, 16)  # of a thumbnail in pixels: the largest whose sum fits
TRIED = 64  # thumbnails from which the bytes of all are estimated
SHEET = 2048  # largest side of a sheet of thumbnails in pixels
QUALITY = 70  # of WebP
MARGIN = 0.9  # share of the room that the estimated thumbnails may take


class _Labels(NamedTuple):
    names: tuple[str, ...]
    of: list[int]


def explore(
    vectors: Vectors,
    source: Source,
    transform: EvalTransform,
    page: Path,
    *,
    title: str,
    clusters: int,
    max_mb: int,
    device: torch.device,
) -> dict[str, Any]:
    """Write the page of a source and its vectors; return a summary."""
    if len(vectors.h) < 2:
        raise UserError("A map needs two images or more.")
    number = {clean(name): i for i, name in enumerate(source.names)}
    index = [number[path] for path in vectors.paths]
    layout = lay_out(vectors.h, clusters=clusters, device=device)
    groups = [
        Group(
            "cluster",
            layout.clusters,
            [f"cluster {i + 1}" for i in range(layout.clusters.max() + 1)],
        )
    ]
    if (labels := _read_labels(source, index)) is not None:
        groups.insert(0, Group("label", np.array(labels.of), labels.names))
    root, paths, lost = _list_paths(source, index, vectors.paths)
    content = MapPage(
        title=title,
        names=vectors.paths,
        root=root,
        paths=paths,
        points=layout.points,
        groups=groups,
        outliers=layout.outliers.numpy(),
        method=layout.method,
        about=layout.about,
    )
    room = max_mb * 10**6 - measure_page(content)
    if room < 0:
        raise UserError(
            f"The names of {len(index):,} images alone take more than {max_mb} MB. Raise --max-mb."
        )
    thumbnails = _build_thumbnails(source, index, transform, room)
    size = write_page(page, content, thumbnails)
    return {
        "page": str(page),
        "images": len(index),
        "bytes": size,
        "thumbnail": thumbnails.side,
        "thumbnails": thumbnails.shown,
        "clusters": len(groups[-1].names),
        "labels": 0 if labels is None else len(labels.names),
        "map": layout.method,
        "not_listed": lost,
        "are_files": root is not None or paths is not None,
    }


def describe(written: dict[str, Any]) -> str:
    """Describe in a few sentences what was written and how to use it."""
    shown = written["thumbnails"]
    part = "" if shown == written["images"] else f" of {shown:,} of them"
    lines = [
        f"Wrote {written['page']}: {written['images']:,} images, {written['bytes'] / 1e6:,.1f} MB, "
        f"thumbnails{part} of {written['thumbnail']} pixels, map by {written['map']}.",
        "Open it in a browser, lasso a group and save its list; "
        + (
            "`selfsight pretrain LIST.txt` and every other command read it."
            if written["are_files"]
            else "it has names only, since these images are not files."
        ),
    ]
    if written["not_listed"]:
        lines.append(describe_not_listed(written["not_listed"]))
    return "\n".join(lines)


def _read_labels(source: Source, index: Sequence[int]) -> _Labels | None:
    """Class names and the class of each image (-1 for none); several classes form one name."""
    if source.labels is not None:
        names = tuple(clean(name) for name in source.class_names)
        return _Labels(names, [int(source.labels[i]) for i in index])
    if source.multilabels is None:
        return None
    known: dict[str, int] = {}
    of = []
    for i in index:
        present = [clean(source.class_names[k]) for k in np.flatnonzero(source.multilabels[i] == 1)]
        of.append(known.setdefault(", ".join(present), len(known)) if present else -1)
    return _Labels(tuple(known), of)


def _list_paths(
    source: Source, index: Sequence[int], names: Sequence[str]
) -> tuple[str | None, list[str | None] | None, int]:
    """The common folder, or the path of each image; and how many cannot be in a list.

    Both are None if the images are not files on this machine.
    """
    if source.local_path is None:
        return None, None, 0
    paths = [str(Path(source.local_path(i)).absolute()) for i in index]
    root = paths[0].removesuffix(names[0])
    if all(
        path == root + name and fits_list(path) for path, name in zip(paths, names, strict=True)
    ):
        return root, None, 0
    listed = [path if fits_list(path) else None for path in paths]
    return None, listed, listed.count(None)


def _build_thumbnails(
    source: Source, index: Sequence[int], transform: EvalTransform, room: int
) -> Thumbnails:
    """Build the largest thumbnails whose sheets take at most `room` bytes in the page.

    If even the smallest thumbnails do not fit, some images have none.
    """
    tried = [index[i] for i in np.linspace(0, len(index) - 1, min(TRIED, len(index))).astype(int)]
    largest = list(_decode_tiles(source, tried, transform, SIDES[0]))
    for side in SIDES:
        tiles = [tile.resize((side, side), Image.Resampling.BOX) for tile in largest]
        each = sum(_base64_size(_encode_sheet(tiles, 8))) / len(tiles) / MARGIN
        if each * len(index) <= room or side == SIDES[-1]:
            break
    count = min(len(index), int(room / each))
    shown = np.linspace(0, len(index) - 1, count).astype(int)
    per_sheet, columns = (SHEET // side) ** 2, SHEET // side
    sheets: list[bytes] = []
    waiting: list[Image.Image] = []
    chosen = [index[i] for i in shown]
    for tile in _decode_tiles(source, chosen, transform, side, progress=True):
        waiting.append(tile)
        if len(waiting) == per_sheet:
            sheets.append(_encode_sheet(waiting, columns))
            waiting = []
    if waiting:
        sheets.append(_encode_sheet(waiting, columns))
    tile_of = np.full(len(index), -1)
    tile_of[shown] = np.arange(count)
    return Thumbnails(side, columns, per_sheet, sheets, tile_of, count)


def _base64_size(data: bytes) -> list[int]:
    return [-(-len(data) // 3) * 4]


def _decode_tiles(
    source: Source,
    index: Sequence[int],
    transform: EvalTransform,
    side: int,
    *,
    progress: bool = False,
) -> Iterator[Image.Image]:
    """The center square of each image; gray if the image can no longer be read."""
    decoded = decode_images(
        source,
        index,
        channels=transform.channels,
        dtype=transform.dtype,
        store_size=side,
        progress=progress,
    )
    for pixels in decoded:
        if isinstance(pixels, str):
            yield Image.new("RGB", (side, side), BACKGROUND)
        else:
            yield ImageOps.fit(
                to_image(to_bytes(torch.from_numpy(pixels), transform)), (side, side)
            )


def _encode_sheet(tiles: Sequence[Image.Image], columns: int) -> bytes:
    file = io.BytesIO()
    build_sheet(tiles, min(columns, len(tiles))).save(file, "WEBP", quality=QUALITY)
    return file.getvalue()
