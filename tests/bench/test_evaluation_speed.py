"""Evaluation is measured as users run it, compiled where they get compiled code."""

from dataclasses import replace

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from selfsight.backbones import BackboneConfig
from selfsight.bench import evaluation_speed
from selfsight.bench.evaluation_speed import EVALUATIONS, measure_evaluation
from selfsight.catalog import build_recipe
from selfsight.compile_options import COMPILE_OPTIONS
from selfsight.data import open_source
from tests.folders import images


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("name", EVALUATIONS)
def test_an_evaluation_is_measured_beside_its_network(name, compiled, monkeypatch, tmp_path):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(COMPILE_OPTIONS, "backend", counter)
    monkeypatch.delitem(COMPILE_OPTIONS, "options")
    monkeypatch.setattr(evaluation_speed, "is_compiled", lambda *_: compiled)
    source = open_source(str(images(tmp_path / "photos", count=22)), labels=True)
    recipe = build_recipe("supervised.cifar10_r18_100ep")
    backbone = BackboneConfig(name="resnet8_narrow")
    recipe = replace(recipe, backbone=backbone, batch_size=8, precision="float32", compile=False)
    cpu = torch.device("cpu")
    found = measure_evaluation(name, recipe, source, cpu, seconds=0.001, times={})
    assert found.fraction_of_limit == pytest.approx(found.images_per_second / found.limit)
    assert counter.frame_count == compiled  # once, for all repetitions
    torch._dynamo.reset()
