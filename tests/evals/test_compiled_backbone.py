import copy
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from selfsight.backbones import BackboneConfig
from selfsight.compile_options import COMPILE_OPTIONS
from selfsight.evals import compiled_backbone, train_classifier
from selfsight.evals.classifier_settings import Regularization
from selfsight.evals.compiled_backbone import CompiledBackbone, compile_if_it_pays, compiling_pays
from selfsight.evals.extract_features import features
from tests.evals.small_networks import TRANSFORM, Small, bright
from tests.evals.test_train_classifier import HEAD, STRONG, WHOLE, trained, weights


@pytest.fixture
def counter(monkeypatch, tmp_path):
    """Count what is compiled, by a backend that traces both passes and generates no code."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(COMPILE_OPTIONS, "backend", counter)
    monkeypatch.delitem(COMPILE_OPTIONS, "options")
    yield counter
    torch._dynamo.reset()


def test_only_a_run_of_minutes_on_a_gpu_is_compiled():
    imagenet, pets = 1_281_167, 3_680
    assert compiling_pays("cuda", 100 * imagenet, 224)  # linear
    assert compiling_pays("cuda", imagenet, 224, trained=True)  # backward passes count too
    assert not compiling_pays("cuda", imagenet, 224)
    assert not compiling_pays("cuda", 100 * pets, 224)
    assert compiling_pays("cuda", 100 * 50_000, 224) and not compiling_pays("cuda", 5_000_000, 32)
    assert compiling_pays("cuda", 400 * 50_000, 32)
    assert not compiling_pays("cpu", 10**12, 224)


def test_without_triton_nothing_is_compiled(counter, monkeypatch):
    settings = {"device": torch.device("cuda"), "num_images": 10**9, "image_size": 224}
    network = Small()
    for found in (True, False):
        monkeypatch.setattr(compiled_backbone.rng, "has_triton", lambda found=found: found)
        compiled = compile_if_it_pays(network, 8, **settings)
        assert isinstance(compiled, CompiledBackbone) == found
        assert found or compiled is network


def test_full_batches_are_compiled_once_and_partial_ones_never(counter):
    network, images = Small().eval(), bright(60)
    names, modes = list(network.state_dict()), [m.training for m in network.modules()]
    plain = features(network, images, TRANSFORM, batch_size=16).h
    compiled = CompiledBackbone(network, 16)
    for _ in range(2):
        found = features(compiled, images, TRANSFORM, batch_size=16).h  # 16, 16, 16, 12
        torch.testing.assert_close(found, plain)
    assert counter.frame_count == 1
    assert list(network.state_dict()) == names
    assert [m.training for m in network.modules()] == modes
    assert network._compiled_call_impl is None
    assert [*map(id, compiled.parameters())] == [*map(id, network.parameters())]
    assert torch.equal(
        copy.deepcopy(network)(torch.ones(2, 3, 8, 8)), network(torch.ones(2, 3, 8, 8))
    )


@pytest.mark.parametrize(
    "training",
    [HEAD, WHOLE, replace(WHOLE, regularization=STRONG)],
    ids=["frozen", "whole", "strong"],
)
def test_a_classifier_is_trained_alike_by_a_compiled_backbone(counter, training, capsys):
    given = Small().train()
    before = weights(given)
    results = []
    for compiled in (False, True, True):
        it = trained(training, compiled=compiled)
        model, average = it.fit(given, it.data, (training.head.lr,))
        results.append((weights(model), None if average is None else weights(average)))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 1  # for both runs and all their steps
    assert "uncompiled" not in capsys.readouterr().err
    assert given.training and given._compiled_call_impl is None
    assert all(torch.equal(value, before[name]) for name, value in given.state_dict().items())


@pytest.mark.parametrize("name", ["resnet8_narrow", "vit_t4"])
def test_drop_path_does_not_compile_again_in_every_step(counter, name, capsys):
    network = BackboneConfig(name=name, image_size=8).build()
    if hasattr(network, "blocks"):
        network.blocks = network.blocks[:2]
    training = replace(WHOLE, epochs=2, regularization=Regularization(drop_path=0.5))
    models = []
    for compiled in (False, True):
        it = trained(training, compiled=compiled)
        models.append(it.fit(network, it.data, (0.1,))[0])
    assert counter.frame_count == 1
    assert "uncompiled" not in capsys.readouterr().err
    torch.testing.assert_close(*map(weights, models), rtol=1e-3, atol=1e-4)


def test_training_compiles_by_the_images_of_all_epochs(monkeypatch):
    asked = []

    def record(backbone, batch_size, **settings):
        asked.append((batch_size, settings["num_images"], settings["trained"]))
        return backbone

    monkeypatch.setattr(train_classifier, "compile_if_it_pays", record)
    for training in (HEAD, WHOLE):
        it = trained(replace(training, batch_size=25))
        it.fit(Small(), it.data, (0.1,))
    assert asked == [(25, 4 * 2 * 25, False), (25, 4 * 2 * 25, True)]


def test_a_network_that_torch_cannot_compile_runs_as_it_is(counter, capsys):
    network, x = Small().eval(), torch.rand(4, 3, 8, 8)
    compiled = CompiledBackbone(network, 4)
    with mock.patch.object(counter, "backend", None):  # the call of None fails
        assert torch.equal(compiled(x), network(x))
    assert "uncompiled" in capsys.readouterr().err
    assert torch.equal(compiled(x), network(x))
    assert capsys.readouterr().err == ""


def test_the_error_of_a_batch_that_does_not_fit_is_that_of_the_network(counter):
    compiled = CompiledBackbone(nn.Linear(3, 2), 4)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        compiled(torch.rand(4, 1, 1, 8))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch imports a module of its own
def test_inductor_trains_the_same_classifier(monkeypatch, tmp_path, capsys):
    torch._dynamo.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    models = []
    for compiled in (False, True):
        it = trained(WHOLE, compiled=compiled)
        models.append(it.fit(Small(), it.data, (0.1,))[0])
    torch.testing.assert_close(*map(weights, models), rtol=1e-3, atol=1e-4)
    assert "uncompiled" not in capsys.readouterr().err


def test_cudnn_times_kernels_only_while_a_compiled_network_is_trained(counter, monkeypatch):
    seen = []
    step = train_classifier.ClassifierEvaluator._step

    def record(self, *args):
        seen.append(torch.backends.cudnn.benchmark)
        step(self, *args)

    monkeypatch.setattr(train_classifier.ClassifierEvaluator, "_step", record)
    for training, compiled in ((WHOLE, True), (WHOLE, False), (HEAD, True)):
        seen.clear()
        it = trained(training, compiled=compiled)
        it.fit(Small(), it.data, (0.1,))
        assert set(seen) == {training is WHOLE and compiled}
    assert not torch.backends.cudnn.benchmark
