"""The recipe of `pretrain`: named or automatic, with the settings that the command gives."""

import os
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import torch
from rich.console import Console

from selfsight import dist
from selfsight.backbones.input_channels import RULE
from selfsight.catalog import build_recipe
from selfsight.check_settings import check_setting
from selfsight.data import data_summary, open_source
from selfsight.data.sources.select_classes import class_words
from selfsight.device import adapt_to_device
from selfsight.encoders.init_encoder import (
    LR_FACTOR,
    StartEncoder,
    check_fits,
    with_start,
    with_statistics,
)
from selfsight.errors import UserError, list_first
from selfsight.methods import DataInfo
from selfsight.options.pretrain_options import PretrainOptions
from selfsight.outside_code import import_name, list_outside_code
from selfsight.recipe import Recipe, has_photos, list_differences, method_name, override, to_dict
from selfsight.recipes import auto_recipe
from selfsight.run_files.run_folder import Run
from selfsight.train.memory_forecast import check_memory, foresee_memory
from selfsight.train.trial_steps import measure_speed
from selfsight.views.domains import for_domain

SAMPLE = 128  # images that the automatic recipe is chosen from


def build_pretrain_recipe(
    data: str | Path,
    options: PretrainOptions,
    device: torch.device,
    start: StartEncoder | None = None,
    *,
    profile: auto_recipe.DataProfile | None = None,
    console: Console | None = None,
) -> tuple[Recipe, dict[str, str]]:
    """Build the recipe of a command, with the reasons for automatic settings.

    `start` is the encoder of --init. Without a `profile` of the data, a sample is read. The
    `console` is told that steps are timed.
    """
    if options.recipe is not None:
        return _adapt(_named_recipe(options), {}, data, options, device, start)
    if profile is None:
        source = open_source(
            data,
            labels=options.labels,
            classes=options.classes,
            label_column=options.label_column,
        )
        profile = profile_data(data_summary.inspect_data(source, sample=SAMPLE))
    if start is not None:
        profile = _match_channels(profile, start)

    def build(images_per_second: float | None) -> tuple[Recipe, dict[str, str]]:
        recipe, reasons = auto_recipe.build_auto_recipe(
            profile,
            device,
            method=options.method,
            epochs=options.epochs,
            batch_size=options.batch_size,
            processes=dist.world_size(),
            image_size=None if start is None else start.image_size,
            domain=options.domain,
            images_per_second=images_per_second,
        )
        return _adapt(recipe, reasons, data, options, device, start)

    recipe, reasons = build(None)
    count = auto_recipe.count_images(profile, recipe.data.tile)
    if "epochs" in reasons and _can_measure_speed(recipe, count, options, device):
        if console is not None:
            console.print("Timing a few steps, to choose the number of epochs.")
        return build(measure_speed(recipe, device, DataInfo(count, 2)))
    return recipe, reasons


def _can_measure_speed(
    recipe: Recipe, count: int, options: PretrainOptions, device: torch.device
) -> bool:
    """Whether to try a few steps: not for a seed, with which a command always gives the same run.

    Settings of a person may need more memory than there is, which others say in a sentence.
    """
    if options.seed is not None or dist.world_size() > 1:
        return False
    if 2 * recipe.batch_size > count:  # too few images to train at all
        return False
    if not (options.settings or options.batch_size or options.init):
        return True
    if device.type == "cuda":  # where a step may take too much; weights begin on the host
        try:
            check_memory(recipe, count, device)
        except UserError:
            return False
        return True
    memory = foresee_memory(recipe, count, device)
    return memory.peak <= memory.available


def _adapt(
    recipe: Recipe,
    reasons: dict[str, str],
    data: str | Path,
    options: PretrainOptions,
    device: torch.device,
    start: StartEncoder | None,
) -> tuple[Recipe, dict[str, str]]:
    """Adapt a recipe to its start, to the settings of the command and to the device."""
    if start is not None:
        automatic = options.recipe is None
        recipe = with_start(recipe, start, automatic=automatic)
        why = f"the network of {start.name}"
        if (after := recipe.backbone.in_channels) != (before := start.backbone.in_channels):
            why += f"; {RULE.format(before, before, after)}"
        reasons = reasons | ({"backbone": why} if automatic else {})
    given = _apply(recipe, data, options)
    # Reasons are for automatic values, not for those that a flag replaced.
    reasons = {
        k: why for k, why in reasons.items() if attrgetter(k)(given) == attrgetter(k)(recipe)
    }
    recipe, adapted = adapt_to_device(given, device)
    if start is not None:
        check_fits(recipe, start)
    return recipe, reasons | adapted


def check_same_settings(
    run: Run, saved: Recipe, data: str | Path, options: PretrainOptions, device: torch.device
) -> None:
    """Raise a UserError if the command has other settings than the run.

    Settings that the command leaves automatic are taken from the run.
    """
    base = saved
    if options.recipe is not None:
        base = _named_recipe(options)
        if saved.start.name:
            base = replace(
                base,
                start=replace(saved.start, lr_factor=LR_FACTOR, freeze=0),
                views=with_statistics(base.views, saved.views[0].mean, saved.views[0].std),
            )
    asked = _apply(base, data, options)
    if options.recipe is not None and not has_photos(saved) and has_photos(asked):
        # The run was fitted to its images when it was started.
        network = replace(asked.backbone, in_channels=saved.data.channels)
        kind = {"channels": saved.data.channels, "dtype": saved.data.dtype}
        data_kind = replace(asked.data, **kind)  # type: ignore[arg-type]
        asked = replace(asked, views=saved.views, backbone=network, data=data_kind)
    same = {k: getattr(saved.data, k) for k in ("storage", "decoder")}
    same = {k: v for k, v in same.items() if getattr(asked.data, k) == "auto"}
    if os.path.realpath(asked.data.path) == os.path.realpath(saved.data.path):
        same["path"] = saved.data.path
    asked = replace(asked, data=replace(asked.data, **same))
    (asked, _), (saved, _) = (
        adapt_to_device(replace(r, backbone=r.backbone.resolved()), device) for r in (asked, saved)
    )
    differences = list_differences(to_dict(asked), to_dict(saved))
    if options.method not in (None, method_name(saved.method)):
        differences.insert(0, ("method", options.method, method_name(saved.method)))
    if str(options.init or "") != saved.start.name:
        differences.insert(0, ("init", options.init, saved.start.name or None))
    if differences:
        texts = [f"{name} is {a} in the command and {b} in the run" for name, a, b in differences]
        raise UserError(
            f"{run.path} was started with other settings: {list_first(texts, 3, '; ')}. "
            "A run keeps its settings: repeat its command to resume it, or start another run with "
            "another --out."
        )


def import_outside_code(options: PretrainOptions, run: Run) -> bool:
    """Import the code from outside selfsight that the run uses, if the command names all of it.

    It is imported by these names only, not from the folder that recipe.json records.
    """
    named = {word.rpartition("=")[2] for word in options.settings} | {options.method}
    if isinstance(options.recipe, Recipe) or ".py:" in str(options.recipe):
        named |= set(list_outside_code(to_dict(_named_recipe(options))))
    outside = list_outside_code(run.saved_recipe())
    if not named >= set(outside):
        return False
    for name in outside:
        import_name(name, "method or backbone")
    return True


def _match_channels(
    profile: auto_recipe.DataProfile, start: StartEncoder
) -> auto_recipe.DataProfile:
    """Read the images with the channels of an encoder: gray as color, or color as gray."""
    channels = start.backbone.in_channels
    if profile.kind is not None:  # the first convolution is fitted to them
        return profile
    if {profile.channels, channels} <= {1, 3} or profile.channels == channels:
        return replace(profile, channels=channels)
    raise UserError(
        f"The images have {profile.channels} channels, and --init {start.name} was trained on "
        f"{channels}. Start from an encoder for {profile.channels}, or from random weights."
    )


def profile_data(summary: data_summary.DataSummary) -> auto_recipe.DataProfile:
    """Summarize the data for the automatic recipe; at least one image must be readable."""
    if not summary.short_side:
        name, why = summary.unreadable[0]
        raise UserError(
            f"None of {summary.sampled} images read from {summary.data} is readable: {name}, for "
            f"one, because {why}. Check the files."
        )
    return auto_recipe.DataProfile(
        count=summary.count,
        short_side=summary.short_side,
        size=summary.median,
        channels=summary.channels,
        kind=summary.kind,
        mirrored=summary.mirrored,
    )


def _named_recipe(options: PretrainOptions) -> Recipe:
    check_setting("recipe", options.recipe, str | Recipe)
    named = options.recipe
    recipe = build_recipe(named) if isinstance(named, str) else named
    if options.domain == "auto":
        return recipe
    return replace(recipe, views=tuple(for_domain(v, options.domain) for v in recipe.views))


def _apply(recipe: Recipe, data: str | Path, options: PretrainOptions) -> Recipe:
    """Replace the settings of a recipe by those that the command gives."""
    given = {name: getattr(options, name) for name in ("epochs", "batch_size", "seed")}
    given["keep_epochs"] = tuple(options.keep_epochs) or None
    recipe = override(recipe, given, options.settings)
    data_settings = replace(
        recipe.data,
        path=str(data),
        classes=class_words(options.classes) or recipe.data.classes,
        labels=options.labels or recipe.data.labels,
        label_column=options.label_column or recipe.data.label_column,
    )
    return replace(recipe, data=data_settings)
