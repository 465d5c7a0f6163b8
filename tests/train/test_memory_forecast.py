"""The forecast of memory against torch's own count of allocations, and against a GPU."""

import functools
from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from selfsight.backbones import BackboneConfig
from selfsight.catalog import build_recipe
from selfsight.methods import Moment
from selfsight.recipe import override
from selfsight.train.init_weights import build_method
from selfsight.train.memory_forecast import foresee_memory

CPU = torch.device("cpu")


def small(**changes):
    recipe = build_recipe("mocov3.cifar10_r18_100ep")
    backbone = BackboneConfig(name="resnet8_narrow", image_size=32, stem="lowres")
    method = replace(recipe.method, dim=16, hidden_dim=32)
    changes |= {"precision": "float32", "batch_size": 32, "backbone": backbone}
    return replace(recipe, method=method, **changes)


@functools.cache
def forecast_of(recomputed):
    return foresee_memory(small(activation_checkpointing=recomputed), 1000, CPU)


def allocated_peak(recipe):
    """The most bytes that a step allocates on the CPU, by torch's profiler."""
    method = build_method(recipe, CPU)
    size = recipe.views[0].size
    views = [torch.randn(recipe.batch_size, 3, size, size) for _ in recipe.views]
    index = torch.arange(recipe.batch_size)
    at = Moment(step=torch.tensor(0), index=index, seed=0, total_steps=1, steps_per_epoch=1)
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profiler:
        method(views, at).loss.backward()
    events = profiler.profiler.kineto_results.events()
    changes = [event.nbytes() for event in events if event.name() == "[memory]"]
    return max(torch.tensor(changes).cumsum(0)).item(), method, views


@pytest.mark.parametrize("recomputed", [False, True])
def test_the_forecast_is_what_torch_allocates(recomputed):
    peak, method, views = allocated_peak(small(activation_checkpointing=recomputed))
    forecast = forecast_of(recomputed)
    tensors = [*method.parameters(), *method.buffers(), *views]
    before = sum(x.numel() * x.element_size() for x in tensors)
    momentum = sum(4 * p.numel() for p in method.parameters() if p.requires_grad)
    assert forecast.peak - before - momentum == pytest.approx(peak, rel=0.1)


def test_recomputed_blocks_store_less_and_a_batch_that_cannot_fit_is_said_to():
    stored, recomputed = forecast_of(False), forecast_of(True)
    assert recomputed.stored < 0.6 * stored.stored
    assert "--activation-checkpointing" not in stored.describe()
    assert "too little. Use --activation-checkpointing" in replace(stored, available=1).describe()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "batch_size", "flags", "gib"),
    [  # measured on an H200, docs/performance.md
        ("moco.cifar10_r18_200ep", 512, (), 1.6),
        ("moco.cifar10_r18_200ep", 4096, (), 10.8),
        ("msbreg.cifar10_r18_100ep", 512, ("--method.num-views", "8"), 9.6),
    ],
)
def test_the_forecast_is_near_what_a_gpu_needed(recipe, batch_size, flags, gib):
    given = {"batch_size": batch_size, "precision": "bf16"}
    forecast = foresee_memory(override(build_recipe(recipe), given, flags), 50_000, CPU)
    assert forecast.peak / 2**30 == pytest.approx(gib, rel=0.1)
