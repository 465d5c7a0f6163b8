"""Write the image sheets of the report: training views, the map of features, nearest neighbors."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int64, Shaped, UInt8
from PIL import Image, ImageOps
from torch import Tensor, nn

from selfsight import rng
from selfsight.data import ImageStore, read_batches
from selfsight.data.eval_transform import EvalTransform
from selfsight.evals.eval_images import EvalImages, Images
from selfsight.evals.extract_features import Features
from selfsight.evals.extract_features import features as compute_features
from selfsight.evals.feature_statistics import unit_or_zero
from selfsight.evals.knn import nearest_neighbors
from selfsight.evals.tsne_map import reduce_to_plane
from selfsight.recipe import Recipe
from selfsight.run_files.json_files import replace_file
from selfsight.run_files.run_folder import Run
from selfsight.train.online_eval import sample_images
from selfsight.train.step import compute_views
from selfsight.views import View

VIEW_TILE, MAP_TILE, NEIGHBOR_TILE = 96, 48, 64  # pixels
MAP_COLUMNS = 40
BACKGROUND = (127, 127, 127)
BYTES = EvalTransform()  # scales no pixels
NEIGHBOR_IMAGES = 5000  # images among which neighbors are searched


def write_views(run: Run, images: ImageStore, recipe: Recipe, rows: int = 8) -> None:
    """Write some images, each with its views of the first epoch, in the precision of training.

    In another precision, kernels would have to be compiled for this sheet alone.
    """
    views, seed = recipe.views, recipe.seed
    position = torch.arange(min(rows, len(images)))
    index = rng.shuffled(rng.key(seed, "pictures"), len(images), position)
    raw = next(read_batches(images, [(0, index)], images.device))
    applied = compute_views(recipe, raw.images, raw.index, raw.epoch)
    columns = [load_uncropped(images, index, views[0])]
    columns += [
        [denormalize(x, view) for x in batch] for batch, view in zip(applied, views, strict=True)
    ]
    tiles = [pad_to_square(image, VIEW_TILE) for row in zip(*columns, strict=True) for image in row]
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
    run: Run,
    images: ImageStore,
    features: Features,
    limit: int = 1500,
    ends: View | EvalTransform = BYTES,
) -> None:
    """Write the features of some images in two dimensions, each with a thumbnail."""
    count = min(limit, len(features.h))
    row = rng.shuffled(rng.key(0, "map"), len(features.h), torch.arange(count))
    row = row.sort().values.to(features.h.device)
    method, points = reduce_to_plane(features.h[row])
    index = features.index[row].cpu()
    labels = names_and_labels(images, index)
    uncropped = load_uncropped(images, index, ends)
    tiles = [ImageOps.fit(image, (MAP_TILE, MAP_TILE)) for image in uncropped]
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
    run: Run,
    images: ImageStore,
    features: Features,
    untrained: Features | None = None,
    rows: int = 12,
    k: int = 6,
    ends: View | EvalTransform = BYTES,
) -> None:
    """Write some images, each with the k others whose features are most similar.

    The k neighbors by the untrained network's features of the same images are shown beside them.
    """
    count, k = min(rows, len(features.h)), min(k, len(features.h) - 1)
    query = rng.shuffled(rng.key(0, "neighbours"), len(features.h), torch.arange(count))
    query = query.to(features.h.device)
    similarities, columns = [], [query[:, None]]
    for found in (features, untrained) if untrained is not None else (features,):
        h = unit_or_zero(found.h)
        similarity, nearest = nearest_neighbors(h, h[query], k=k, exclude=query)
        similarities.append(similarity)
        columns.append(nearest)
    index = features.index[torch.cat(columns, dim=1)].cpu()  # [rows, 1 + k or 1 + 2 k]
    uncropped = load_uncropped(images, index.flatten(), ends)
    tiles = [ImageOps.fit(image, (NEIGHBOR_TILE, NEIGHBOR_TILE)) for image in uncropped]
    write_sheet(run, "neighbors.jpg", tiles, index.shape[1])
    lines = []
    for line, values in zip(index, torch.cat(similarities, dim=1).tolist(), strict=True):
        (name, label), *others = names_and_labels(images, line)
        similar = [
            {"name": n, "label": la, "similarity": round(value, 4)}
            for (n, la), value in zip(others, values, strict=True)
        ]
        lines.append(
            {"name": name, "label": label, "neighbors": similar[:k], "untrained": similar[k:]}
        )
    layout = {"tile": NEIGHBOR_TILE, "columns": index.shape[1], "rows": lines}
    run.write_image_json("neighbors", layout)


def write_map_and_neighbors(
    run: Run,
    images: Images,
    network: nn.Module,
    untrained: nn.Module | None,
    transform: EvalTransform,
    seed: int,
    encoded: Mapping[str, Sequence[Features]] | None = None,
) -> None:
    """Write the map of some images, and their nearest neighbors after and before training.

    `encoded` are features of the `trained` and `untrained` network that already exist.
    """
    subset = sample_images(images, NEIGHBOR_IMAGES, seed)
    encode = partial(
        compute_features, images=images, transform=transform, index=subset, progress="images"
    )
    known = encoded or {}
    h = select_features(known.get("trained", ()), subset) or encode(network)
    before = None
    if untrained is not None:
        before = select_features(known.get("untrained", ()), subset) or encode(untrained)
    shown: ImageStore
    if isinstance(images, EvalImages):
        shown, rows = images.crops(transform, subset)
        h = h._replace(index=rows)  # those of the untrained network have the same order
    else:
        shown = images
    write_map(run, shown, h, ends=transform)
    write_neighbors(run, shown, h, before, ends=transform)


def select_features(parts: Sequence[Features], index: Int64[Tensor, " n"]) -> Features | None:
    """Select the features of these images, in this order; None if one of them is missing."""
    if not parts:
        return None
    device = parts[0].index.device
    h = torch.empty(len(index), parts[0].h.shape[1], dtype=parts[0].h.dtype, device=device)
    is_known = torch.zeros(len(index), dtype=torch.bool)
    for part in (part for part in parts if len(part.index)):
        places, order = part.index.cpu().sort()
        nearest = torch.searchsorted(places, index).clamp(max=len(places) - 1)
        found = places[nearest] == index
        h[found.to(device)] = part.h[order[nearest[found]].to(part.h.device)].to(device)
        is_known |= found
    return Features(h, None, index.to(device)) if bool(is_known.all()) else None


def names_and_labels(
    images: ImageStore, index: Int64[Tensor, " n"]
) -> list[tuple[str, str | None]]:
    """Name of each image and, if it has one, its class."""
    names = [str(images.names[i]) for i in index.tolist()]
    if images.labels is None:
        return [(name, None) for name in names]
    labels = images.labels.cpu()[index].tolist()
    classes: Sequence[Any] = images.class_names or range(max(labels, default=0) + 1)
    return [(n, str(classes[y]) if y >= 0 else None) for n, y in zip(names, labels, strict=True)]


def load_uncropped(
    images: ImageStore, index: Int64[Tensor, " n"], ends: View | EvalTransform = BYTES
) -> list[Image.Image]:
    """Load stored images without their padding; low and high of `ends` are black and white."""
    loaded = []
    for raw in read_batches(images, ((0, part) for part in index.split(64)), images.device):
        pixels, sizes = raw.images.padded().cpu(), raw.images.sizes.cpu()
        for x, (height, width) in zip(pixels, sizes.tolist(), strict=True):
            loaded.append(to_image(to_bytes(x[:, :height, :width], ends)))
    return loaded


def denormalize(x: Float[Tensor, "c h w"], view: View) -> Image.Image:
    """Convert a view to an image, with its normalization undone."""
    x = x.float()
    mean, std = (x.new_tensor(v)[:, None, None] for v in (view.mean, view.std))
    return to_image((x * std + mean).mul(255).round().clamp(0, 255).to(torch.uint8).cpu())


def to_bytes(x: Shaped[Tensor, "c h w"], ends: View | EvalTransform) -> UInt8[Tensor, "c h w"]:
    """Scale pixels of any type to bytes."""
    if x.dtype == torch.uint8:
        return x
    low, high = (torch.tensor(v)[:, None, None] for v in (ends.low, ends.high))
    return ((x.float() - low) / (high - low)).mul(255).round().clamp(0, 255).to(torch.uint8)


def to_image(x: UInt8[Tensor, "c h w"]) -> Image.Image:
    """Convert the first three channels to RGB, or the first to gray if there are fewer."""
    x = x[:3] if len(x) >= 3 else x[:1].expand(3, -1, -1)
    return Image.fromarray(x.permute(1, 2, 0).contiguous().numpy())


def pad_to_square(image: Image.Image, side: int) -> Image.Image:
    """Pad to a square; small images are enlarged without smoothing."""
    small = max(image.size) * 2 <= side
    method = Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS
    return ImageOps.pad(image, (side, side), method, color=BACKGROUND)


def build_sheet(tiles: Sequence[Image.Image], columns: int) -> Image.Image:
    """Put equal square tiles into one image, row by row."""
    side = tiles[0].width
    sheet = Image.new("RGB", (columns * side, -(-len(tiles) // columns) * side), BACKGROUND)
    for i, tile in enumerate(tiles):
        sheet.paste(tile, (i % columns * side, i // columns * side))
    return sheet


def write_sheet(run: Run, name: str, tiles: Sequence[Image.Image], columns: int) -> None:
    """Write equal square tiles as one image."""
    sheet = build_sheet(tiles, columns)
    run.images.mkdir(parents=True, exist_ok=True)
    with replace_file(run.images / name) as file:
        sheet.save(file, "PNG" if name.endswith(".png") else "JPEG", quality=85)
