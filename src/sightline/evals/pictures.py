"""Sheets of pictures for the report: the views used, a map of the features, nearest neighbours."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from PIL import Image, ImageOps
from torch import Tensor

from sightline import random
from sightline.data import Pictures
from sightline.evals.features import Features
from sightline.evals.knn import neighbours
from sightline.evals.spectrum import unit
from sightline.runs import Run
from sightline.views import View, make_views

VIEW_TILE, MAP_TILE, NEIGHBOUR_TILE = 96, 48, 64  # pixels
MAP_COLUMNS = 40
BACKGROUND = (127, 127, 127)
LEAST_FOR_TSNE = 10  # points; fewer have no neighbourhoods to keep


def write_views(
    run: Run, pictures: Pictures, views: Sequence[View], seed: int, rows: int = 8
) -> None:
    """Some pictures, each with the views that the first epoch of training makes of it."""
    index = some(pictures, rows, seed)
    pixels, sizes = pictures.batch(index)
    made = make_views(views, pixels, sizes, index.to(pixels.device), seed=seed, epoch=0)
    columns = [whole(pictures, index)]
    columns += [[shown(x, view) for x in batch] for batch, view in zip(made, views, strict=True)]
    tiles = [padded(image, VIEW_TILE) for row in zip(*columns, strict=True) for image in row]
    write_sheet(run, "views.png", tiles, len(columns))
    titles = ["picture", *(f"view {i + 1}" for i in range(len(views)))]
    run.write_picture_json(
        "views",
        {
            "tile": VIEW_TILE,
            "columns": len(columns),
            "titles": titles,
            "rows": [{"name": str(pictures.names[i])} for i in index.tolist()],
        },
    )


def write_map(
    run: Run, pictures: Pictures, features: Features, limit: int = 1500, seed: int = 0
) -> None:
    """The features of some pictures in two dimensions, each with a small picture."""
    count = min(limit, len(features.h))
    row = random.shuffled(random.key(seed, "map"), len(features.h), torch.arange(count))
    row = row.sort().values.to(features.h.device)
    method, points = flattened(features.h[row])
    index = features.index[row].cpu()
    labels = names_of(pictures, index)
    tiles = [ImageOps.fit(image, (MAP_TILE, MAP_TILE)) for image in whole(pictures, index)]
    write_sheet(run, "map.jpg", tiles, MAP_COLUMNS)
    run.write_picture_json(
        "map",
        {
            "tile": MAP_TILE,
            "columns": MAP_COLUMNS,
            "method": method,
            "points": [
                {"x": round(float(x), 4), "y": round(float(y), 4), "label": label, "name": name}
                for (x, y), (name, label) in zip(points, labels, strict=True)
            ],
        },
    )


def write_neighbours(
    run: Run, pictures: Pictures, features: Features, rows: int = 12, k: int = 7, seed: int = 0
) -> None:
    """Some pictures, each with the k others whose features are most like its own."""
    h = unit(features.h).nan_to_num(0.0, 0.0, 0.0)
    count, k = min(rows, len(h)), min(k, len(h) - 1)
    query = random.shuffled(random.key(seed, "neighbours"), len(h), torch.arange(count))
    query = query.to(h.device)
    similarity, found = neighbours(h, h[query], k=k, own=query)
    index = features.index[torch.cat([query[:, None], found], dim=1)].cpu()  # [rows, k + 1]
    images = whole(pictures, index.flatten())
    tiles = [ImageOps.fit(image, (NEIGHBOUR_TILE, NEIGHBOUR_TILE)) for image in images]
    write_sheet(run, "neighbours.jpg", tiles, k + 1)
    written = []
    for line, values in zip(index, similarity.tolist(), strict=True):
        (name, label), *others = names_of(pictures, line)
        nearest = [
            {"name": n, "label": la, "similarity": round(value, 4)}
            for (n, la), value in zip(others, values, strict=True)
        ]
        written.append({"name": name, "label": label, "neighbours": nearest})
    run.write_picture_json(
        "neighbours", {"tile": NEIGHBOUR_TILE, "columns": k + 1, "rows": written}
    )


def flattened(h: Float[Tensor, "n d"]) -> tuple[str, Float[np.ndarray, "n 2"]]:
    """Points of a plane and how they were found: t-SNE, or PCA where points are too few."""
    from sklearn.decomposition import PCA  # seconds to import, and only the report needs it
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    x = unit(h).nan_to_num(0.0, 0.0, 0.0).double().cpu().numpy()
    x = x - x.mean(axis=0)
    flat = np.ptp(x) == 0  # one point; neither method has anything to divide by
    few = len(x) < LEAST_FOR_TSNE
    if flat or few or min(x.shape) < 3:
        if flat or min(x.shape) < 2:
            return "PCA", np.zeros((len(x), 2))
        return "PCA", PCA(2, svd_solver="full").fit_transform(x)
    x = PCA(min(50, *x.shape), svd_solver="full").fit_transform(x)
    # Half of scikit-learn's steps: from PCA's plane the map has settled by then, in 3 s for 1500
    # points instead of 7. One thread, since the map would change with their number.
    tsne = TSNE(init="pca", random_state=0, max_iter=500, perplexity=min(30, (len(x) - 1) / 3))
    with threadpool_limits(1):
        return "t-SNE", tsne.fit_transform(x)


def some(pictures: Pictures, count: int, seed: int) -> Int64[Tensor, " n"]:
    """A few pictures of the set, the same for the same seed."""
    position = torch.arange(min(count, len(pictures)))
    return random.shuffled(random.key(seed, "pictures"), len(pictures), position)


def names_of(pictures: Pictures, index: Int64[Tensor, " n"]) -> list[tuple[str, str | None]]:
    """The name and, where there is one, the class of each picture."""
    names = [str(pictures.names[i]) for i in index.tolist()]
    if pictures.labels is None:
        return [(name, None) for name in names]
    labels = pictures.labels.cpu()[index].tolist()
    words: Sequence[Any] = pictures.class_names or range(max(labels, default=0) + 1)
    return [(n, str(words[y]) if y >= 0 else None) for n, y in zip(names, labels, strict=True)]


def whole(pictures: Pictures, index: Int64[Tensor, " n"]) -> list[Image.Image]:
    """The stored pictures without their padding."""
    images = []
    for part in index.split(64):
        pixels, sizes = (x.cpu() for x in pictures.batch(part))
        for x, (height, width) in zip(pixels, sizes.tolist(), strict=True):
            images.append(image_of(x[:, :height, :width]))
    return images


def shown(x: Float[Tensor, "c h w"], view: View) -> Image.Image:
    """A view with its normalisation undone."""
    mean, std = (x.new_tensor(v)[:, None, None] for v in (view.mean, view.std))
    return image_of((x * std + mean).mul(255).round().clamp(0, 255).to(torch.uint8).cpu())


def image_of(x: UInt8[Tensor, "c h w"]) -> Image.Image:
    """Red, green and blue of the first three channels, or grey of the first if there are fewer."""
    x = x[:3] if len(x) >= 3 else x[:1].expand(3, -1, -1)
    return Image.fromarray(x.permute(1, 2, 0).contiguous().numpy())


def padded(image: Image.Image, side: int) -> Image.Image:
    """The whole picture in a square; small ones keep their pixels visible."""
    small = max(image.size) * 2 <= side
    method = Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS
    return ImageOps.pad(image, (side, side), method, color=BACKGROUND)


def write_sheet(run: Run, name: str, tiles: Iterable[Image.Image], columns: int) -> None:
    """Equal square tiles in rows, as one picture."""
    tiles = list(tiles)
    side = tiles[0].width
    sheet = Image.new("RGB", (columns * side, -(-len(tiles) // columns) * side), BACKGROUND)
    for i, tile in enumerate(tiles):
        sheet.paste(tile, (i % columns * side, i // columns * side))
    run.pictures.mkdir(parents=True, exist_ok=True)
    sheet.save(run.pictures / name, quality=85)
