"""Sheets of images for the report: the views used, a map of the features, nearest neighbors."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from PIL import Image, ImageOps
from torch import Tensor

from selfsight import rng
from selfsight.data import Images, read_batches
from selfsight.evals.features import Features
from selfsight.evals.knn import neighbors
from selfsight.evals.spectrum import unit
from selfsight.run_folder import Run
from selfsight.views import View, apply_views

VIEW_TILE, MAP_TILE, NEIGHBOR_TILE = 96, 48, 64  # pixels
MAP_COLUMNS = 40
BACKGROUND = (127, 127, 127)
LEAST_FOR_TSNE = 10  # points; fewer have no neighborhoods to keep


def write_views(run: Run, images: Images, views: Sequence[View], seed: int, rows: int = 8) -> None:
    """Some images, each with the views that the first epoch of training makes of it."""
    index = some(images, rows, seed)
    raw = next(read_batches(images, [(0, index)], images.device))
    batches = apply_views(views, raw.images, raw.index, seed=seed, epoch=raw.epoch)
    columns = [uncropped(images, index)]
    columns += [[shown(x, view) for x in batch] for batch, view in zip(batches, views, strict=True)]
    tiles = [padded(image, VIEW_TILE) for row in zip(*columns, strict=True) for image in row]
    write_sheet(run, "views.png", tiles, len(columns))
    titles = ["image", *(f"view {i + 1}" for i in range(len(views)))]
    run.write_image_json(
        "views",
        {
            "tile": VIEW_TILE,
            "columns": len(columns),
            "titles": titles,
            "rows": [{"name": str(images.names[i])} for i in index.tolist()],
        },
    )


def write_map(
    run: Run, images: Images, features: Features, limit: int = 1500, seed: int = 0
) -> None:
    """The features of some images in two dimensions, each with a small image."""
    count = min(limit, len(features.h))
    row = rng.shuffled(rng.key(seed, "map"), len(features.h), torch.arange(count))
    row = row.sort().values.to(features.h.device)
    method, points = flattened(features.h[row])
    index = features.index[row].cpu()
    labels = names_of(images, index)
    tiles = [ImageOps.fit(image, (MAP_TILE, MAP_TILE)) for image in uncropped(images, index)]
    write_sheet(run, "map.jpg", tiles, MAP_COLUMNS)
    run.write_image_json(
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


def write_neighbors(
    run: Run, images: Images, features: Features, rows: int = 12, k: int = 7, seed: int = 0
) -> None:
    """Some images, each with the k others whose features are most like its own."""
    h = unit(features.h).nan_to_num(0.0, 0.0, 0.0)
    count, k = min(rows, len(h)), min(k, len(h) - 1)
    query = rng.shuffled(rng.key(seed, "neighbours"), len(h), torch.arange(count))
    query = query.to(h.device)
    similarity, found = neighbors(h, h[query], k=k, own=query)
    index = features.index[torch.cat([query[:, None], found], dim=1)].cpu()  # [rows, k + 1]
    whole_images = uncropped(images, index.flatten())
    tiles = [ImageOps.fit(image, (NEIGHBOR_TILE, NEIGHBOR_TILE)) for image in whole_images]
    write_sheet(run, "neighbors.jpg", tiles, k + 1)
    written = []
    for line, values in zip(index, similarity.tolist(), strict=True):
        (name, label), *others = names_of(images, line)
        nearest = [
            {"name": n, "label": la, "similarity": round(value, 4)}
            for (n, la), value in zip(others, values, strict=True)
        ]
        written.append({"name": name, "label": label, "neighbors": nearest})
    run.write_image_json("neighbors", {"tile": NEIGHBOR_TILE, "columns": k + 1, "rows": written})


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


def some(images: Images, count: int, seed: int) -> Int64[Tensor, " n"]:
    """A few images of the set, the same for the same seed."""
    position = torch.arange(min(count, len(images)))
    return rng.shuffled(rng.key(seed, "pictures"), len(images), position)


def names_of(images: Images, index: Int64[Tensor, " n"]) -> list[tuple[str, str | None]]:
    """The name and, where there is one, the class of each image."""
    names = [str(images.names[i]) for i in index.tolist()]
    if images.labels is None:
        return [(name, None) for name in names]
    labels = images.labels.cpu()[index].tolist()
    words: Sequence[Any] = images.class_names or range(max(labels, default=0) + 1)
    return [(n, str(words[y]) if y >= 0 else None) for n, y in zip(names, labels, strict=True)]


def uncropped(images: Images, index: Int64[Tensor, " n"]) -> list[Image.Image]:
    """The stored images without their padding."""
    found = []
    for raw in read_batches(images, ((0, part) for part in index.split(64)), images.device):
        pixels, sizes = raw.images.padded().cpu(), raw.images.sizes.cpu()
        for x, (height, width) in zip(pixels, sizes.tolist(), strict=True):
            found.append(image_of(x[:, :height, :width]))
    return found


def shown(x: Float[Tensor, "c h w"], view: View) -> Image.Image:
    """A view with its normalization undone."""
    mean, std = (x.new_tensor(v)[:, None, None] for v in (view.mean, view.std))
    return image_of((x * std + mean).mul(255).round().clamp(0, 255).to(torch.uint8).cpu())


def image_of(x: UInt8[Tensor, "c h w"]) -> Image.Image:
    """Red, green and blue of the first three channels, or gray of the first if there are fewer."""
    x = x[:3] if len(x) >= 3 else x[:1].expand(3, -1, -1)
    return Image.fromarray(x.permute(1, 2, 0).contiguous().numpy())


def padded(image: Image.Image, side: int) -> Image.Image:
    """The whole image in a square; small ones keep their pixels visible."""
    small = max(image.size) * 2 <= side
    method = Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS
    return ImageOps.pad(image, (side, side), method, color=BACKGROUND)


def write_sheet(run: Run, name: str, tiles: Iterable[Image.Image], columns: int) -> None:
    """Equal square tiles in rows, as one image."""
    tiles = list(tiles)
    side = tiles[0].width
    sheet = Image.new("RGB", (columns * side, -(-len(tiles) // columns) * side), BACKGROUND)
    for i, tile in enumerate(tiles):
        sheet.paste(tile, (i % columns * side, i // columns * side))
    run.images.mkdir(parents=True, exist_ok=True)
    sheet.save(run.images / name, quality=85)
