"""All recipes and arms of studies are valid, and train.

Each test loops over all of them: the names of those that fail are in the message.
"""

import inspect
import json
import re
from dataclasses import fields, replace
from itertools import pairwise

import pytest

from selfsight.catalog import build_recipe
from selfsight.data.pixel_statistics import PixelKind
from selfsight.errors import UserError
from selfsight.optim.lr_scaling import scaled_lr
from selfsight.recipe import (
    eval_transform,
    fit_to_images,
    from_dict,
    list_changed,
    override,
    to_dict,
)
from selfsight.recipes import RECIPES
from selfsight.studies import ARMS
from tests.recipes.small import shrink, structure, train_two_steps


@pytest.fixture(scope="module")
def built():
    """All recipes and all arms, by name."""
    return {name: build_recipe(name) for name in (*RECIPES, *ARMS)}


@pytest.fixture(scope="module")
def distinct(built):
    """Names of one recipe of each structure: those that differ in numbers run the same code."""
    first = {(r.method, tuple(v.size for v in r.views)): n for n, r in reversed(built.items())}
    return sorted({structure(shrink(built[name])): name for name in first.values()}.values())


def test_every_recipe_survives_json(built, distinct):
    for name in {*RECIPES, *distinct}:
        recipe = built[name]
        assert from_dict(json.loads(json.dumps(to_dict(recipe)))) == recipe, name


def test_every_setting_of_a_run_must_be_there(built):
    recipe = built["moco.cifar10_r18_200ep"]
    saved = json.loads(json.dumps(to_dict(recipe)))
    parts = {"": saved, "data.": saved["data"], "views.1.": saved["views"][1]}
    parts |= {"start.": saved["start"], "optim.schedule.": saved["optim"]["schedule"]}
    missing = [(prefix, name) for prefix, part in parts.items() for name in part]
    for prefix, name in set(missing) - {("", "method")}:
        value = parts[prefix].pop(name)
        with pytest.raises(UserError, match=rf"setting {re.escape(prefix + name)} is missing"):
            from_dict(saved, complete=True)
        parts[prefix][name] = value
    assert from_dict(saved, complete=True) == recipe


def test_every_learning_rate_starts_at_the_warmup_peaks_and_falls_to_its_end(built):
    for name, recipe in built.items():
        schedule, epochs = recipe.optim.schedule, recipe.epochs
        peak = scaled_lr(recipe.optim.lr, recipe.optim.scale, recipe.batch_size)
        first, warmup = schedule.lr(0.0, epochs, peak), schedule.warmup_epochs
        assert first == pytest.approx((schedule.warmup_start if warmup else 1) * peak), name
        after = [warmup + 1 + (epochs - warmup - 1) * i / 20 for i in range(21)]
        lrs = [schedule.lr(epoch, epochs, peak) for epoch in after]
        assert all(peak * (1 + 1e-9) >= a >= b - 1e-12 for a, b in pairwise(lrs)), name
        if schedule.name == "cosine":
            assert lrs[-1] == pytest.approx(schedule.end * peak, abs=1e-9), name
        elif schedule.name == "step":
            end = peak * schedule.gamma ** len(schedule.milestones)
            assert lrs[-1] == pytest.approx(end), name


def test_every_recipe_trains_for_two_steps_at_reduced_width(built, distinct, tmp_path):
    for name in distinct:
        state, losses = train_two_steps(shrink(built[name]), tmp_path / name)
        assert state.step == 2, name
        assert all(loss.isfinite() for loss in losses), name
        trained = [p for p in state.method.parameters() if p.requires_grad]
        assert all(p.isfinite().all() for p in trained), name
        with_gradient = [p for p in trained if p.grad is not None and p.grad.any()]
        assert 2 * len(with_gradient) > len(trained), name
        grouped = [id(p) for group in state.optimizer.param_groups for p in group["params"]]
        assert sorted(grouped) == sorted(id(p) for p in trained), name


def test_every_recipe_names_its_source_and_its_number_of_epochs(built):
    for name, function in RECIPES.items():
        text = inspect.getdoc(function)
        assert text.split("\n")[0].endswith("."), name
        assert re.search(r"^Reference: \S", text, re.MULTILINE), name
        epochs = re.search(r"_(\d+)ep$", name)
        assert epochs is None or built[name].epochs == int(epochs[1]), name


def test_recipes_and_arms_of_imagenet_100_select_its_classes_and_no_others_do(built):
    on_imagenet100 = {name for name in RECIPES if name.split(".")[1].startswith("imagenet100_")}
    on_imagenet100 |= {name for name, arm in ARMS.items() if arm.scale == "imagenet100"}
    assert len(on_imagenet100) >= 83
    assert on_imagenet100 == {n for n, r in built.items() if r.data.classes == ("imagenet100",)}
    assert all(not built[name].data.classes for name in built.keys() - on_imagenet100)


def test_there_are_few_enough_recipes_to_read():
    assert len(RECIPES) <= 80


def test_a_shorter_run_and_its_shorter_warmup_are_set_together(built):
    flags = ["--optim.schedule.warmup-epochs", "1"]
    recipe = override(built["mocov3.imagenet_r50_100ep"], {"epochs": 2, "seed": None}, flags)
    assert recipe.epochs == 2 and recipe.optim.schedule.warmup_epochs == 1
    assert recipe.seed == 0


@pytest.mark.parametrize(
    ("name", "flags", "sizes"),
    [
        ("msbreg.cifar10_r18_100ep", ["--method.num-views", "8"], [32] * 8),
        ("msbreg.cifar10_r18_100ep", ["--method.num-views=2"], [32] * 2),
        ("jcl.cifar10_r18_200ep", ["--method.num-keys", "5"], [32] * 6),
        ("fast_moco.cifar10_r18_200ep", ["--method.multicrop"], [32] * 3),
        ("simsiam.cifar10_r18_800ep", ["--method.num-views", "4"], [32] * 4),
        ("swav.imagenet_r50_800ep", ["--method.num-small", "1"], [224, 224, 96]),
        ("swav.imagenet_r50_two_views_400ep", ["--method.num-small", "2"], [224, 224, 96, 96]),
        # A view that the first flag adds can be changed by the next.
        (
            "simsiam.cifar10_r18_800ep",
            ["--method.num-views", "3", "--views.2.size", "24"],
            [32, 32, 24],
        ),
    ],
)
def test_views_follow_the_flag_that_changes_their_number(built, name, flags, sizes):
    recipe, before = override(built[name], {}, flags), built[name].views
    assert [view.size for view in recipe.views] == sizes
    assert recipe.views[: len(before)] == before[: len(sizes)]
    if "swav" in name:  # as SwAV's own multi-crop
        assert recipe.views == built["swav.imagenet_r50_800ep"].views[: len(sizes)]


def test_images_are_evaluated_with_the_size_and_the_statistics_of_the_first_view(built):
    recipe = built["swav.imagenet_r50_800ep"]
    first, *others = recipe.views
    views = (replace(first, mean=(0.3,), std=(0.7,)), *others)
    transform = eval_transform(replace(recipe, views=views))
    assert (transform.size, transform.mean, transform.std) == (224, (0.3,), (0.7,))
    assert eval_transform(recipe, 160).size == 160


def test_images_that_are_no_photographs_have_their_own_statistics_and_the_crops_of_the_recipe(
    built,
):
    recipe = built["moco.cifar10_r18_200ep"]
    statistics = {"low": (0.0, -1.0), "high": (2.0, 5.0), "mean": (0.4, 0.5), "std": (0.1, 0.2)}
    kind = PixelKind(2, "float32", is_color=False, has_up=True, **statistics)
    found = fit_to_images(recipe, kind)
    assert (found.backbone.in_channels, found.data.channels, found.data.dtype) == (2, 2, "float32")
    for view, before in zip(found.views, recipe.views, strict=True):
        assert {name: getattr(view, name) for name in statistics} == statistics
        assert view.gray == 0 and view.jitter == (*before.jitter[:2], 0.0, 0.0)
        assert (view.size, view.scale, view.flip) == (before.size, before.scale, before.flip)


def test_changed_settings_are_those_that_differ_from_their_defaults():
    recipe = build_recipe("moco.cifar10_r18_200ep")
    found = list_changed(recipe)
    for name in found:
        *parents, last = name.split(".")
        owner = recipe
        for part in parents:
            owner = owner[int(part)] if part.isdigit() else getattr(owner, part)
        (field,) = (f for f in fields(owner) if f.name == last)
        assert field.default != getattr(owner, last)
    assert {"optim.lr", "epochs", "batch_size"} <= {*found} and "log_gradients" not in found
    views = (recipe.views[0], replace(recipe.views[1], blur_sigma=(0.3, 0.4)))
    moved = list_changed(replace(recipe, log_gradients=True, views=views))
    assert {*moved} - {*found} == {"log_gradients", "views.1.blur_sigma"}


def test_views_for_other_channels_are_refused_before_a_run_begins():
    recipe = RECIPES["moco.cifar10_r18_200ep"]()
    gray = replace(recipe.backbone, in_channels=1)
    with pytest.raises(UserError, match="mean and std have 3 numbers but the images have 1"):
        replace(recipe, backbone=gray, data=replace(recipe.data, channels=1))
