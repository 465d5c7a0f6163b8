import time
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch import nn

from selfsight import record_graph
from selfsight.catalog import build_recipe
from selfsight.evals.baselines import baselines
from selfsight.evals.extract_features import features
from selfsight.evals.knn import KNN, knn_predict
from selfsight.evals.label_free import LabelFreeEvaluator
from selfsight.evals.linear_lbfgs import LinearProbe
from selfsight.evals.stratified_splits import stratified
from selfsight.evals.train_classifier import ClassifierEvaluator
from selfsight.run_files.run_folder import Run
from selfsight.runs.image_sheets import write_map, write_neighbors, write_views
from tests.evals.small_networks import TRANSFORM, VIEWS, Means, Small, bright, labeled
from tests.evals.test_train_classifier import HEAD, STRONG, WHOLE, weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # of torch's own, while it compiles
]


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())


@pytest.mark.parametrize("resident", [True, False])
def test_evaluators_say_the_same_on_either_device(backbone, resident):
    here = bright(60)
    there = here.to("cuda") if resident else here
    split = stratified(here.labels)
    for evaluator in (KNN, LinearProbe):
        expected = evaluator(data=labeled(here, split=split))(backbone.cpu())
        found = evaluator(data=labeled(there, split=split))(backbone.cuda())
        assert found.pop("per_image").n == expected.pop("per_image").n
        assert found == pytest.approx(expected, abs=0.01)
    expected = LabelFreeEvaluator(images=here, views=VIEWS)(backbone.cpu())
    found = LabelFreeEvaluator(images=there, views=VIEWS)(backbone.cuda())
    assert found == pytest.approx(expected, rel=0.02, abs=0.02)
    expected = baselines(KNN(data=labeled(here, split=split)), Means())
    found = baselines(KNN(data=labeled(there, split=split)), Means().cuda())
    assert found == pytest.approx(expected, abs=0.01)


def test_classifiers_are_trained_alike_on_either_device():
    data = labeled(bright(60), test=bright(30, seed=1))
    for training in (HEAD, WHOLE, replace(WHOLE, epochs=2, regularization=STRONG)):
        it = ClassifierEvaluator(data=replace(data, autocast=None), training=training)
        assert it(Small())["accuracy"] == pytest.approx(it(Small().cuda())["accuracy"], abs=0.15)
    assert ClassifierEvaluator(data=data, training=WHOLE)(Small().cuda())["accuracy"] == 1.0


@pytest.mark.parametrize("training", [HEAD, WHOLE], ids=["frozen", "whole"])
def test_a_compiled_classifier_is_trained_alike(training):
    data = labeled(bright(60).to("cuda"), test=bright(30, seed=1))
    for compiled in (False, True):
        it = ClassifierEvaluator(data=data, training=training, compiled=compiled)
        assert it(Small().cuda())["accuracy"] == 1.0


@pytest.mark.parametrize("compiled", [False, True])
def test_a_recorded_step_trains_the_same_classifier(compiled, monkeypatch):
    data = labeled(bright(60).to("cuda"), test=bright(30, seed=1))
    it = ClassifierEvaluator(data=data, training=WHOLE, compiled=compiled)
    backbone, replays = Small().cuda(), mock.Mock(wraps=torch.cuda.CUDAGraph.replay)
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: replays(graph))
    recorded = weights(it.fit(backbone, it.data, (0.1,))[0])
    assert replays.call_count > 0
    monkeypatch.setattr(record_graph, "WARMUP_CALLS", 10**6)
    plain = weights(it.fit(backbone, it.data, (0.1,))[0])
    torch.testing.assert_close(recorded, plain, rtol=1e-2, atol=1e-3)


def test_neighbors_of_cifar_take_less_than_a_second():
    g = torch.Generator("cuda").manual_seed(0)
    bank = torch.randn(50_000, 512, device="cuda", generator=g)
    y = torch.randint(0, 10, (50_000,), device="cuda", generator=g)
    queries = torch.randn(10_000, 512, device="cuda", generator=g)
    knn_predict(bank, y, queries[:100], ks=(20, 200))
    torch.cuda.synchronize()
    since = time.perf_counter()
    knn_predict(bank, y, queries, ks=(20, 200))
    torch.cuda.synchronize()
    assert time.perf_counter() - since < 1


def test_neighbors_of_imagenet_take_20_seconds_and_8_gib():
    """The bank is in the memory of the host."""
    g = torch.Generator("cuda").manual_seed(0)
    bank = torch.empty(1_281_167, 2048)
    for block in bank.split(1 << 17):
        block.copy_(torch.randn(block.shape, device="cuda", generator=g))
    y = torch.randint(0, 1000, (len(bank),), device="cuda", generator=g)
    queries = torch.randn(50_000, 2048, device="cuda", generator=g)
    knn_predict(bank[: 1 << 17], y[: 1 << 17], queries[:1000], ks=(20, 200))
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    since = time.perf_counter()
    found = knn_predict(bank, y, queries, ks=(20, 200))
    torch.cuda.synchronize()
    seconds, peak = time.perf_counter() - since, torch.cuda.max_memory_allocated() / 2**30
    print(f"{seconds:.1f} s, {peak:.1f} GiB")
    assert found[20].shape == (50_000,)
    assert seconds < 20 and peak < 8


def test_sheets_are_written_from_features_on_the_device(backbone, tmp_path):
    images, run = bright(30).to("cuda"), Run(tmp_path)
    found = features(backbone.cuda(), images, TRANSFORM)
    assert found.h.is_cuda
    write_views(run, images, replace(build_recipe("simclr.shapes"), views=VIEWS))
    write_map(run, images, found)
    write_neighbors(run, images, found)
    assert len(run.image_json("map")["points"]) == 30
    assert len(run.image_json("neighbors")["rows"]) == 12
    assert len(run.image_json("views")["rows"]) == 8
