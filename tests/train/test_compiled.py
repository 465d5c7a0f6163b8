"""What is compiled keeps its names and numbers, and evaluation does without it."""

import copy
import subprocess
import sys

import pytest
import torch

from sightline.compiling import HOW
from sightline.evals.features import evaluating
from sightline.methods import BASELINES, METHODS
from sightline.train.compiled import compile_networks
from tests.methods.small import make, moment, views


def test_the_networks_of_a_method_are_compiled_under_their_names(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kept"))
    called = []

    def compiled(self, **how):
        assert how == HOW
        self._compiled_call_impl = lambda *x: (called.append(self), self._call_impl(*x))[1]

    monkeypatch.setattr(torch.nn.Module, "compile", compiled)
    method = make("mocov3")
    plain = copy.deepcopy(method)
    compile_networks(method)
    assert list(method.state_dict()) == list(plain.state_dict())
    found, expected = (m(views(m), moment()).loss for m in (method, plain))
    assert torch.equal(found, expected)
    student, teacher = method.student, method.teacher.net
    networks = (student, student.backbone, student.projector, method.predictor)
    for network in (*networks, teacher, teacher.backbone, teacher.projector):
        assert called.count(network) == 2  # views


def test_earlier_runs_of_a_process_use_nothing_up(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: calls.append("reset"))
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **_: calls.append("compile"))
    compile_networks(make("moco"))
    assert calls[0] == "reset" and calls.count("reset") == 1 and "compile" in calls


def test_evaluation_runs_what_is_not_compiled(monkeypatch):
    stances = []
    monkeypatch.setattr(
        torch.compiler, "set_stance", lambda s: (stances.append(s), torch.no_grad())[1]
    )
    network = torch.nn.Linear(2, 2)
    with evaluating(network):
        pass
    network._compiled_call_impl = network._call_impl
    with evaluating(network):
        pass
    assert stances == ["force_eager"]


def compared(*words):
    """In a process of its own: the checks of shapes that tests run under cannot be compiled."""
    command = [sys.executable, "-m", "tests.train.compare", *words]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout


@pytest.mark.slow
def test_every_traced_method_has_the_gradients_of_the_eager_one():
    names = sorted(METHODS | BASELINES)
    assert compared("--backend", "aot_eager", *names).count("in 1 graphs") == len(names)


@pytest.mark.slow
def test_compiled_networks_have_the_gradients_of_eager_ones(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    found = compared("moco")  # a queue, and groups of batch norm
    assert "in 3 graphs" in found  # student, teacher, loss
