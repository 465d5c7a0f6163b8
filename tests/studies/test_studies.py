"""Studies: the papers' tables as arms."""

from dataclasses import replace

import pytest

from selfsight.errors import UserError
from selfsight.recipes import FILES, RECIPES
from selfsight.studies import ARMS, STUDIES
from selfsight.studies.study_types import change_settings


def test_names_are_unique_and_a_study_is_found_by_its_file():
    for name, study in STUDIES.items():
        assert study.name == name
        assert name not in FILES, "a recipe would hide the study's arms"
    assert len(ARMS) == sum(len(study.arms) for study in STUDIES.values())


def test_every_study_states_paper_claim_and_judgment():
    for name, study in STUDIES.items():
        assert study.paper and study.claim.endswith(".") and study.judged_by.endswith("."), name


def test_every_arm_starts_from_a_recipe():
    for name, arm in ARMS.items():
        assert arm.recipe in RECIPES, name


def test_an_arm_without_a_published_number_says_why():
    for name, arm in ARMS.items():
        reasons = ("plotted", "none", "about", "a curve", "2.1 points")
        assert (arm.published is None) == arm.source.startswith(reasons), name
        assert arm.published is None or 0 < arm.published < 100, name


def test_table_5_of_msbreg_has_its_cells_in_place():
    arms = STUDIES["msbreg_lambdas"].arms_at("imagenet100")
    best = {2: 72.8, 4: 80.4, 8: 81.6}  # the largest number of each block of the table
    for k, number in best.items():
        published = [arm.published for arm in arms if arm.settings["method.num_views"] == k]
        assert len(published) == 20 and max(published) == number
    arm = ARMS["msbreg_lambdas.k8_s010_b025"]
    method = arm.build().method
    assert (method.num_views, method.singular_weight, method.brownian_weight) == (8, 0.01, 0.25)
    assert arm.published == 81.2
    assert ARMS["msbreg_lambdas.k2_s000_b000"].published == 71.9


def test_two_views_of_msbreg_take_the_steps_of_the_byol_recipe():
    """Its loss is half of BYOL's: twice the learning rate and half the decay are the same SGD."""
    msbreg = ARMS["msbreg_lambdas.cifar10_k2_s000_larger_lr"].build().optim
    byol = RECIPES["byol.cifar10_r18_100ep"]().optim
    assert msbreg == replace(byol, lr=2 * byol.lr, weight_decay=byol.weight_decay / 2)


def test_rows_of_simclrs_figure_5_have_the_means_that_it_prints():
    arms = {a.name: a for a in STUDIES["simclr_augmentations"].arms if a.scale == "imagenet"}
    names = ("crop", "cutout", "color", "sobel", "noise", "blur", "rotate")
    means = (39.2, 29.4, 25.7, 18.8, 15.5, 14.5, 13.8)  # the last column, a check of the others
    for first, mean in zip(names, means, strict=True):
        row = [arms[first if first == s else f"{first}_{s}"].published for s in names]
        assert sum(row) / 7 == pytest.approx(mean, abs=0.06), first


def test_simclrs_pairs_change_one_branch_in_their_order():
    for name, order in (
        ("crop_color", ("second_crop", "jitter", "gray")),
        ("color_crop", ("jitter", "gray", "second_crop")),
        ("rotate", ("rotate",)),
    ):
        plain, changed = ARMS[f"simclr_augmentations.{name}"].build().views
        assert changed.order == order and (plain.crop, changed.crop) == ("random", "shared")
        assert not any(plain.probability(operation) for operation in plain.order)
        assert all(changed.probability(operation) for operation in changed.order)
        assert (plain.scale, plain.ratio) == (changed.scale, changed.ratio)


def test_numbers_of_eqco_that_the_paper_prints():
    published = {
        arm.name: arm.published
        for arm in STUDIES["eqco_negatives"].arms
        if arm.published is not None
    }
    assert published == {
        "v1_k65536": 60.6,
        "v1_k256": 54.7,
        "v1_eqco_k256": 60.4,
        "v2_k65536": 67.5,
        "v2_k256": 67.0,
        "v2_k1024": 67.1,
        "v2_k4096": 67.6,
        "v2_k16384": 67.3,
        "v2_k262144": 67.4,
    }


def test_settings_change_at_every_depth_at_once():
    recipe = RECIPES["moco.imagenet_v2_200ep"]()
    changed = change_settings(
        recipe,
        {"epochs": 4, "optim.schedule.warmup_epochs": 3, "optim.lr": 1.0, "method.dim": 64},
    )
    assert (changed.epochs, changed.optim.schedule.warmup_epochs) == (4, 3)
    assert (changed.optim.lr, changed.method.dim) == (1.0, 64)
    assert changed.method.queue_size == recipe.method.queue_size


def test_an_unknown_setting_is_answered_with_the_nearest():
    with pytest.raises(UserError, match='Did you mean "queue_size"'):
        change_settings(RECIPES["moco.imagenet_v2_200ep"](), {"method.queue_sizes": 3})
