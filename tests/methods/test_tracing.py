"""What CUDA compiles of every method is traced here, on a CPU.

Torch's tracer rejects some Python that runs well. Losses and networks are compiled on CUDA only,
so without these tests such a line would fail there first.
"""

import contextlib
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin

import pytest
import torch

from selfsight.backbones import BackboneConfig
from selfsight.bench.communication import fake_processes
from selfsight.check_settings import field_types
from selfsight.conformance import Subject
from selfsight.conformance.method_under_test import SMALL_SETTINGS
from selfsight.errors import UserError
from selfsight.losses import blockwise_contrastive
from selfsight.methods import BASELINES, METHODS
from selfsight.methods.base import validate_method
from selfsight.nn.combinatorial_patches import Patches
from tests.methods.small import small
from tests.methods.traced_steps import NUM_STEPS, trace_steps

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, while it traces

SLOW = pytest.mark.slow
ALL = sorted(METHODS | BASELINES)


def assert_traced_once(subject, **options):
    """Tracing has no graph break, and what changes from step to step makes no new graph."""
    num_losses, num_graphs, graph_breaks = trace_steps(subject, **options)
    assert graph_breaks == {}
    assert num_graphs == [num_graphs[0]] * NUM_STEPS
    assert (num_losses > 0) != subject.method.needs_labels  # of the baseline, torch's own
    assert num_graphs[0] > num_losses


@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("name", ALL)
def test_losses_and_networks_are_traced_once(name, num_processes):
    """With two processes, the exchanges are in the graphs."""
    with fake_processes(2) if num_processes == 2 else contextlib.nullcontext():
        assert_traced_once(small(name))


@pytest.mark.parametrize("name", [name for name in ALL if small(name).method.info_nce])
def test_losses_of_batches_too_large_for_their_matrix_are_traced_once(name, monkeypatch):
    monkeypatch.setattr(blockwise_contrastive, "MAX_BLOCKS", 0)
    monkeypatch.setattr(blockwise_contrastive, "BLOCK_SIZE", 64)
    assert_traced_once(small(name))


@SLOW
@pytest.mark.parametrize("name", ALL)
def test_losses_and_networks_are_traced_once_in_bf16(name):
    assert_traced_once(small(name), autocast=torch.bfloat16)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(
    "backbone", ["resnet8_narrow", "vit_narrow4", pytest.param("resnet50", marks=SLOW)]
)
def test_backbones_and_their_blocks_are_traced_once(backbone, blocks):
    config = BackboneConfig(name=backbone, image_size=32)
    assert_traced_once(replace(small("mocov3"), backbone=config), blocks=blocks)


def test_vit_with_batch_norm_is_traced_once():
    """Its batch norm is decomposed as on CUDA: torch expects other strides of the CPU's kernel."""
    config = BackboneConfig(name="vit_bn_narrow4", image_size=32)
    subject = replace(small("mocov3"), backbone=config)
    assert_traced_once(subject, backend="aot_eager_decomp_partition")


def list_alternatives(setting: str, declared: Any, value: Any) -> list[Any]:
    """List other values of a setting that change which operations are computed."""
    if get_origin(declared) is Literal:
        return [other for other in get_args(declared) if other != value]
    if declared is bool:
        return [not value]
    if type(None) in get_args(declared):
        return [SMALL_SETTINGS.get(setting, 0.5) if value is None else None]
    if declared is float and value == 0:
        return [0.5]
    if declared is Patches:
        return [Patches(how="off" if value.on else "divide")]
    return []


def list_variants() -> dict[str, Subject]:
    """List every method with each alternative value of each of its settings."""
    variants = {}
    for name in ALL:
        types = field_types(type(small(name).method))
        even = {size: 4 for size in ("bn_group", "num_views") if size in types}
        for setting, declared in types.items():
            value = getattr(small(name).method, setting)
            for other in list_alternatives(setting, declared, value):
                subject = small(name, **even | {setting: other})
                sizes = tuple(subject.view_sizes)
                with contextlib.suppress(UserError):  # not every method has every kind of norm
                    validate_method(subject.method, batch_size=8, view_sizes=sizes)
                    shown = other.how if isinstance(other, Patches) else other
                    variants[f"{name}-{setting}-{shown}"] = subject
    return variants


VARIANTS = list_variants()


@SLOW
@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_networks_of_other_settings_are_traced_once(variant):
    assert_traced_once(VARIANTS[variant])
