"""Open the images of a recipe or of a run: source, fingerprint, storage."""

from dataclasses import replace

import torch
from rich.console import Console

from selfsight import dist
from selfsight.data import ImageStore, Source, find_url, open_images, open_source, plan_storage
from selfsight.data.data_fingerprint import compare_fingerprints, fingerprint_data
from selfsight.data.pixel_statistics import find_kind
from selfsight.data.sources.tiles import cut_tiles
from selfsight.errors import UserError, count_noun, list_first
from selfsight.recipe import Recipe, fit_to_images, list_differences, method_name, to_dict
from selfsight.run_files.run_folder import Run
from selfsight.terminal.console import is_verbose, open_console

Reasons = dict[str, str]
Fingerprint = dict[str, str | int]


def fingerprint_everywhere(recipe: Recipe, source: Source) -> Fingerprint:
    """Fingerprint the images; raise a UserError if processes differ in them or in their recipes.

    Each machine may have the images in another place.
    """
    own = to_dict(replace(recipe, data=replace(recipe.data, path=""))), fingerprint_data(source)
    first, *others = dist.gather_objects(own)
    for rank, other in enumerate(others, start=1):
        texts = [
            f"{name} is {a} in process 0 and {b} in process {rank}"
            for name, a, b in list_differences(first[0], other[0])
        ]
        if (difference := compare_fingerprints(first[1], other[1])) is not None:
            texts.append(f"process {rank} has other images than process 0 ({difference})")
        if texts:
            raise UserError(
                f"All processes of a run need equal settings and images, but "
                f"{list_first(texts, 3, '; ')}."
            )
    return own[1]


def describe_other_images(run: Run, fingerprint: Fingerprint) -> str | None:
    """Describe how the images differ from those at the start of the run; None if they do not."""
    saved = run.saved_recipe().get("data_fingerprint") or {}
    return compare_fingerprints(saved, fingerprint)


def open_run_images(
    run: Run, recipe: Recipe, device: torch.device, *, trust: bool = False
) -> ImageStore:
    """Open the images of a run to evaluate with them; print a note if they have changed."""
    check_local(run, recipe, trust=trust)
    try:
        source = open_recipe_source(recipe)
    except UserError as error:
        raise UserError(
            f"The images that {run.path} was trained on cannot be opened. {error} Put them back, "
            "or evaluate it with other images: --labeled DATA."
        ) from error
    fingerprint = dist.on_first(lambda: fingerprint_data(source))
    difference = describe_other_images(run, fingerprint)
    if difference is not None:
        open_console(stderr=True, quiet=dist.rank() != 0).print(
            f"{recipe.data.path} no longer holds the images that {run.path} was trained on: "
            f"{difference}.",
        )
    return open_recipe_images(recipe, device, source=source)


def check_local(run: Run, recipe: Recipe, *, trust: bool) -> None:
    """Raise a UserError if a recipe.json, which may be untrusted, names images on a network.

    Also if it names none, as that of a study that holds some of the images out.
    """
    if not recipe.data.path:
        raise UserError(
            f"{run.path} does not name its images: `selfsight study` trained it on some of a data "
            "set. Repeat that command to continue it, or give images: --labeled DATA to "
            "evaluate, --data DATA to reproduce."
        )
    url = find_url(recipe.data.path)
    if url is not None and not trust:
        raise UserError(
            f"The images of {run.path} are on a network: its recipe.json names {url}. If you trust "
            "that address, add --trust (in Python: trust=True)."
        )


def open_recipe_source(recipe: Recipe) -> Source:
    """Open the images of a recipe, cut into tiles if it says so."""
    return cut_like_run(_open_whole(recipe), recipe)


def open_new_source(recipe: Recipe) -> tuple[Recipe, Source]:
    """Open the images of a new run; adapt the recipe to images that are not photographs."""
    source = _open_whole(recipe)
    has_default = recipe.data.channels == 3 and recipe.data.dtype == "uint8"
    kind = find_kind(source) if has_default else None
    recipe = recipe if kind is None else fit_to_images(recipe, kind)
    return recipe, cut_like_run(source, recipe)


def cut_like_run(source: Source, recipe: Recipe | None) -> Source:
    """Cut images into tiles if the recipe does."""
    if recipe is None or (tile := recipe.data.tile) is None:
        return source
    return cut_tiles(source, tile, channels=recipe.data.channels, dtype=recipe.data.dtype)


def _open_whole(recipe: Recipe) -> Source:
    data = recipe.data
    source = open_source(
        data.path, labels=data.labels, classes=data.classes, label_column=data.label_column
    )
    if data.label_column is not None and source.labels is None:
        raise UserError(
            f'Column "{data.label_column}" of {data.path} has several classes per image, and '
            "measuring during training needs one. Name another column with --label-column, or "
            "leave it out."
        )
    if recipe.method.needs_labels and source.labels is None:
        raise UserError(
            f"{method_name(recipe.method)} needs labels, and {data.path} has none. Add --labels "
            "if its sub-folders are classes, or choose another method of `selfsight methods`."
        )
    return source


def resolve_storage(recipe: Recipe, source: Source, device: torch.device) -> tuple[Recipe, Reasons]:
    """Replace `auto` in how the images are stored and decoded by a choice, with its reasons."""
    data = recipe.data
    plan = plan_storage(source, data.stored, device)
    data = replace(data, storage=plan.storage, decoder=plan.decoder)
    return replace(recipe, data=data), plan.reasons


def open_recipe_images(
    recipe: Recipe,
    device: torch.device,
    console: Console | None = None,
    source: Source | None = None,
) -> ImageStore:
    """Open the images of a recipe; cached pixels are on the device if they fit."""
    source = open_recipe_source(recipe) if source is None else source
    if device.type != "cuda" and recipe.data.decoder == "nvjpeg":  # a run from another machine
        recipe = replace(recipe, data=replace(recipe.data, decoder="cpu"))
    recipe, _ = resolve_storage(recipe, source, device)
    images = open_images(source, recipe.data.stored, device)
    if console and images.notes:
        console.print(*images.notes, sep="\n")
    if console:
        print_skipped(images, console)
    return images


def print_skipped(images: ImageStore, console: Console) -> None:
    """Say which images could not be read, if any."""
    if not images.skipped:
        return
    files = [f"{name} ({why})" for name, why in images.skipped]
    shown = list_first(files, len(files) if is_verbose() else 5)
    console.print(f"Skipped {count_noun(len(files), 'unreadable image')}: {shown}")
