"""Every named recipe: it is valid, its rate and its parameter groups are right, and it trains."""

import inspect
import json
import re
from itertools import pairwise

import pytest
import torch

from selfsight import catalog
from selfsight.optim.config import scaled_lr
from selfsight.recipe import from_dict, overridden, to_dict
from selfsight.recipes import RECIPES, recipe
from tests.recipes.small import begun, small, structure, two_steps

MADE = {name: make() for name, make in RECIPES.items()}
# Recipes that differ in numbers only run the same code: one of each kind is enough to run.
KINDS = {structure(small(made)): name for name, made in reversed(MADE.items())}


@pytest.mark.parametrize("name", RECIPES)
def test_it_is_valid_and_survives_its_file(name):
    made = MADE[name]
    assert from_dict(json.loads(json.dumps(to_dict(made)))) == made
    assert made == recipe(name)


@pytest.mark.parametrize("name", RECIPES)
def test_its_rate_starts_peaks_and_ends_where_it_should(name):
    made = MADE[name]
    schedule, epochs = made.optim.schedule, made.epochs
    peak = scaled_lr(made.optim.lr, made.optim.scale, made.batch_size)
    start, warm = schedule.lr(0.0, epochs, peak), schedule.warmup_epochs
    assert start == pytest.approx((schedule.warmup_start if warm else 1) * peak)
    steps = [warm + 1 + (epochs - warm - 1) * i / 20 for i in range(21)]
    rates = [schedule.lr(e, epochs, peak) for e in steps]
    assert all(peak * (1 + 1e-9) >= a >= b - 1e-12 for a, b in pairwise(rates))
    if schedule.name == "cosine":
        assert rates[-1] == pytest.approx(schedule.end * peak, abs=1e-9)
    elif schedule.name == "step":
        assert rates[-1] == pytest.approx(peak * schedule.gamma ** len(schedule.milestones))


@pytest.mark.parametrize("name", sorted(KINDS.values()))
def test_its_parameter_groups_hold_every_trained_parameter_once(name, tmp_path):
    made = small(MADE[name])
    state = begun(made, tmp_path)
    grouped = [p for group in state.optimizer.param_groups for p in group["params"]]
    trained = [p for p in state.method.parameters() if p.requires_grad]
    assert len(grouped) == len(trained) == len({id(p) for p in grouped})


@pytest.mark.parametrize("name", sorted(KINDS.values()))
def test_it_takes_two_steps_at_reduced_width(name, tmp_path):
    state, losses = two_steps(small(MADE[name]), tmp_path)
    assert state.step == 2 and all(loss.isfinite() for loss in losses)
    trained = [p for p in state.method.parameters() if p.requires_grad]
    assert all(p.isfinite().all() for p in trained)
    moved = [p for p in trained if p.grad is not None and p.grad.any()]
    assert 2 * len(moved) > len(trained)
    assert state.method.student.backbone(torch.zeros(2, 3, 32, 32)).isfinite().all()


def test_the_catalog_has_a_line_for_each_with_its_reference():
    rows = catalog.recipes()
    assert [row["name"] for row in rows] == list(RECIPES)
    for row in rows:
        assert row["reference"] and row["summary"].endswith("."), row["name"]
        assert row["epochs"] > 0 and row["data"] and row["method"]
        assert {"ours", "batch_size", "backbone"} <= set(row)


def test_the_catalog_can_be_asked_for_one_method():
    rows = catalog.recipes("msbreg")
    assert {row["method"] for row in rows} == {"msbreg"}
    assert len(rows) == sum(name.startswith("msbreg.") for name in RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_a_number_of_epochs_in_a_name_is_that_of_the_recipe(name):
    said = re.search(r"_(\d+)ep$", name)
    if said:
        assert MADE[name].epochs == int(said[1])
    assert "Reference: " in inspect.getdoc(RECIPES[name])


def test_the_grid_of_msbreg_is_table_5():
    grid = [n for n in RECIPES if re.match(r"msbreg\.imagenet100_k\d_s\d+_b\d+$", n)]
    assert len(grid) == 60
    best = {2: 72.8, 4: 80.4, 8: 81.6}  # the largest number of each column of the table
    for k, number in best.items():
        found = [
            float(re.search(r"Reference: ([\d.]+)", inspect.getdoc(RECIPES[n]))[1])
            for n in grid
            if MADE[n].method.num_views == k
        ]
        assert len(found) == 20 and max(found) == number
    cell = MADE["msbreg.imagenet100_k8_s010_b025"].method
    assert (cell.num_views, cell.singular_weight, cell.brownian_weight) == (8, 0.01, 0.25)


def test_a_shorter_run_and_its_shorter_warm_up_are_set_together():
    flags = ["--optim.schedule.warmup-epochs", "1"]
    made = overridden(recipe("mocov3.imagenet_r50_100ep"), {"epochs": 2, "seed": None}, flags)
    assert made.epochs == 2 and made.optim.schedule.warmup_epochs == 1
    assert made.seed == 0
