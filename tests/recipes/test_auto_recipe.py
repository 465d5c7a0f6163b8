"""The automatic recipe: valid for any images, and each choice has its reason."""

from dataclasses import fields, replace
from types import SimpleNamespace
from unittest import mock

import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsight import recipe_from_options, rng
from selfsight.catalog import build_recipe
from selfsight.errors import UserError
from selfsight.methods import METHODS
from selfsight.options.pretrain_options import PretrainOptions
from selfsight.recipe import from_dict, to_dict
from selfsight.recipe_from_options import build_pretrain_recipe
from selfsight.recipes import auto_recipe
from selfsight.recipes.auto_recipe import (
    DataProfile,
    build_auto_recipe,
)
from tests.folders import images

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("method", [None, *METHODS])
@settings(deadline=None, max_examples=8)
@given(count=st.integers(4, 2_000_000), side=st.integers(8, 4000), channels=st.sampled_from([1, 3]))
def test_any_images_get_a_valid_recipe(method, count, side, channels):
    made, reasons = build_auto_recipe(
        DataProfile(count=count, short_side=side, channels=channels), CPU, method=method
    )
    assert from_dict(to_dict(made)) == made
    assert 2 * made.batch_size <= count
    assert getattr(made.method, "queue_size", 0) <= max(made.batch_size, count // 10)
    assert made.backbone.in_channels == channels == made.data.channels
    for name in ("batch_size", "epochs", "views", "backbone", "optim", "precision", "compile"):
        assert reasons[name]


@pytest.mark.parametrize("processes", [1, 2, 3, 5, 6, 7, 8, 12, 16])
def test_any_number_of_processes_can_share_the_batch(processes):
    for count, method in ((200, None), (5000, "moco"), (5000, "nnclr"), (2_000_000, "swav")):
        data = DataProfile(count=count, short_side=64)
        made, reasons = build_auto_recipe(data, CPU, method=method, processes=processes)
        alone, _ = build_auto_recipe(data, CPU, method=method)
        assert made.batch_size % processes == 0
        assert alone.batch_size - processes < made.batch_size <= max(alone.batch_size, processes)
        assert ("share it equally" in reasons["batch_size"]) == bool(alone.batch_size % processes)


def test_what_is_given_is_kept_and_the_rest_fits_it():
    facts = DataProfile(count=5000, short_side=64)
    made, reasons = build_auto_recipe(facts, CPU, method="moco", epochs=7, batch_size=48)
    assert (made.epochs, made.batch_size) == (7, 48)
    assert made.method.queue_size % 48 == 0 and 48 % made.method.bn_group == 0
    assert "epochs" not in reasons and "batch_size" not in reasons


@pytest.mark.parametrize(("count", "group"), [(64, 4), (300, 8), (600, 16), (5000, 32)])
def test_shuffled_batch_norm_has_two_groups_or_more(count, group):
    facts = DataProfile(count=count, short_side=64)
    made, _ = build_auto_recipe(facts, CPU, method="moco")
    assert made.method.bn_group == group <= made.batch_size // 2
    made, reasons = build_auto_recipe(facts, CPU, method="moco", batch_size=37)
    assert made.method.bn == "sync" and "no two groups" in reasons["method.bn"]


def test_a_setting_that_a_flag_replaces_loses_the_automatic_reason(tmp_path):
    options = PretrainOptions(epochs=5, settings=("--backbone.name", "vit_t4"))
    made, reasons = build_pretrain_recipe(images(tmp_path), options, CPU)
    assert made.backbone.name == "vit_t4" and "backbone" not in reasons
    assert {"views", "optim", "data.store_size"} <= set(reasons)


@pytest.mark.parametrize("method", ["dino", "lejepa", "swav"])
def test_small_crops_are_small_and_there_are_none_of_small_views(method, monkeypatch):
    made, reasons = build_auto_recipe(DataProfile(count=1000, short_side=32), CPU, method=method)
    assert [view.size for view in made.views] == [32, 32]
    assert "method.num_small" in reasons
    assert {name.partition(".")[2] for name in reasons if name.startswith("method.")} <= {
        field.name for field in fields(made.method)
    }
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    made, _ = build_auto_recipe(DataProfile(count=1000, short_side=500), CUDA, method=method)
    assert [view.size for view in made.views] == [224] * 2 + [96] * made.method.num_small
    assert made.method.num_small > 0


@pytest.mark.parametrize("method", ["supervised", "mocov3"])
def test_only_a_supervised_vit_learns_its_patches(method):
    made, _ = build_auto_recipe(DataProfile(count=1000, short_side=32), CPU, method=method)
    network = replace(made.backbone, name="vit_t4").build()
    learned = {p.requires_grad for p in network.patch_embed.parameters()}
    assert learned == {method == "supervised"}


@pytest.mark.parametrize(("side", "size"), [(28, 32), (32, 32), (64, 64), (500, 64)])
def test_views_follow_the_images_and_the_cpu_caps_them(side, size):
    made, _ = build_auto_recipe(DataProfile(count=1000, short_side=side), CPU)
    assert {view.size for view in made.views} == {size}


@given(count=st.integers(16, 2_000_000), speed=st.floats(1, 1e6), gpu=st.booleans())
def test_the_measured_speed_decides_the_epochs(count, speed, gpu):
    data = DataProfile(count=count, short_side=32)
    with mock.patch("torch.cuda.is_bf16_supported", return_value=True):
        made, reasons = build_auto_recipe(data, CUDA if gpu else CPU, images_per_second=speed)
    choices = auto_recipe.GPU_EPOCHS if gpu else auto_recipe.EPOCHS
    most = auto_recipe.GPU_MINUTES if gpu else auto_recipe.CPU_MINUTES
    minutes = made.epochs * count / speed / 60
    assert minutes <= most or made.epochs == min(choices)
    assert minutes > most / 2 or made.epochs == max(choices)
    assert f"the measured {speed:.0f} images/s" in reasons["epochs"]
    assert made.compile == (gpu and rng.has_triton() and made.epochs * count / speed >= 180)


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_the_speed_is_measured_where_no_seed_and_no_epochs_are_given(tmp_path, monkeypatch, device):
    photos, measured = images(tmp_path), []
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    monkeypatch.setattr(
        recipe_from_options, "measure_speed", lambda _, on, __: measured.append(on) or 7.0
    )
    for flags, why in (({"seed": 1}, "at an assumed"), ({"epochs": 3}, "")):
        _, reasons = build_pretrain_recipe(photos, PretrainOptions(**flags), device)
        assert not measured and why in reasons.get("epochs", "")
    _, reasons = build_pretrain_recipe(photos, PretrainOptions(), device)
    assert measured == [device] and "at the measured 7 images/s" in reasons["epochs"]


def test_no_step_is_timed_that_does_not_fit_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe_from_options, "measure_speed", None)  # calling it would fail
    too_much = SimpleNamespace(peak=2, available=1)
    monkeypatch.setattr(recipe_from_options, "foresee_memory", lambda *_: too_much)
    photos = images(tmp_path)
    _, reasons = build_pretrain_recipe(photos, PretrainOptions(batch_size=8), CPU)
    assert "at an assumed" in reasons["epochs"]
    # On a GPU a step may be tried, but weights begin in the memory of the host.
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (2**30, 2**30))
    options = PretrainOptions(method="moco", settings=["--method.queue-size", "80000000"])
    _, reasons = build_pretrain_recipe(photos, options, CUDA)
    assert "at an assumed" in reasons["epochs"]


def test_the_speed_is_measured_where_few_images_are_cut_into_many_tiles(monkeypatch):
    monkeypatch.setattr(recipe_from_options, "measure_speed", lambda *_: 70.0)
    facts = DataProfile(count=20, short_side=2000, size=(2000, 2000))
    options = PretrainOptions(domain="microscopy")
    made, reasons = build_pretrain_recipe("slides", options, CPU, profile=facts)
    assert 2 * made.batch_size > 20 and "at the measured 70 images/s" in reasons["epochs"]


def test_digits_are_not_mirrored_unless_a_domain_is_named():
    facts = DataProfile(count=1000, short_side=28, channels=1, mirrored=False)
    for domain, flip in (("auto", 0.0), ("photographs", 0.5)):
        made, reasons = build_auto_recipe(facts, CPU, domain=domain)
        assert {view.flip for view in made.views} == {flip}
        assert ("not mirrored" in reasons["views"]) == (flip == 0.0)


def test_a_setting_that_does_not_exist_is_refused_with_the_nearest():
    saved = to_dict(build_recipe("simclr.shapes"))
    saved["optim"]["momentun"] = saved["optim"].pop("momentum")
    with jaxtyping_off(), pytest.raises(UserError, match='Did you mean "momentum"'):
        from_dict(saved)


class jaxtyping_off:  # noqa: N801
    """Let a wrong value reach our own sentence instead of the tests' type checks."""

    def __enter__(self):
        jaxtyping.config.update("jaxtyping_disable", True)

    def __exit__(self, *_):
        jaxtyping.config.update("jaxtyping_disable", False)


def test_prototypes_of_a_short_run_are_trained():
    facts = DataProfile(count=2000, short_side=32)
    made, _ = build_auto_recipe(facts, CPU, method="swav", epochs=10)
    assert made.method.freeze_steps == 2000 // made.batch_size
