"""What is compiled keeps its names and numbers, and evaluation does without it."""

import copy
import getpass
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch._functorch.config as tracing

from selfsight.catalog import build_recipe
from selfsight.compile_cache import persist_compile_cache
from selfsight.compile_options import COMPILE_OPTIONS
from selfsight.evals.extract_features import eval_mode
from selfsight.methods import BASELINES, METHODS
from selfsight.nn.activation_checkpointing import find_blocks
from selfsight.nn.ema_teacher import set_chunk_size
from selfsight.train import cudnn_and_determinism
from selfsight.train.compile import compile_networks
from tests.methods.small import make, moment, views
from tests.nn.test_activation_checkpointing import build


@pytest.fixture
def called(monkeypatch):
    """Networks in the order in which their compiled code is called."""
    called = []

    def compiled(self, **how):
        assert how == COMPILE_OPTIONS
        self._compiled_call_impl = lambda *x: (called.append(self), self._call_impl(*x))[1]

    monkeypatch.setattr(torch.nn.Module, "compile", compiled)
    return called


def test_the_networks_of_a_method_are_compiled_under_their_names(called):
    method = make("mocov3")
    plain = copy.deepcopy(method)
    compile_networks(method)
    assert list(method.state_dict()) == list(plain.state_dict())
    found, expected = (m(views(m), moment()).loss for m in (method, plain))
    assert torch.equal(found, expected)
    student, teacher = method.student, method.teacher.net
    networks = (student.backbone, student.projector, method.predictor)
    for network in (*networks, teacher.backbone, teacher.projector):
        assert called.count(network) == 2  # views
    assert not {student, teacher} & set(called)  # so that methods share compiled backbones


def test_chunks_and_heads_are_compiled_where_backbones_encode_in_chunks(called):
    method = make("mocov3", bn="split", bn_group=4)
    set_chunk_size(method, 4)
    compile_networks(method)
    with torch.no_grad():
        method(views(method), moment())
    student, teacher = method.student, method.teacher.net
    heads = (student.projector, method.predictor, teacher.projector)
    assert [called.count(head) for head in heads] == [2] * 3  # views
    assert [called.count(net.backbone) for net in (student, teacher)] == [4] * 2  # chunks of each
    assert not {student, teacher} & set(called)


@pytest.mark.parametrize("recomputed", [False, True])
def test_blocks_are_compiled_by_themselves_where_asked_or_recomputed(called, recomputed):
    method = build("mocov3", "resnet8_narrow", recomputed=recomputed)
    compile_networks(method, blocks=not recomputed)
    method(views(method, size=16), moment()).loss.backward()
    student, teacher = method.student, method.teacher.net
    for block in find_blocks(student):
        assert called.count(block) == (4 if recomputed else 2)  # views, and again in backward
    assert [called.count(block) for block in find_blocks(teacher)] == [2] * 3
    assert not {student, teacher, student.backbone, teacher.backbone} & set(called)


@pytest.mark.parametrize("chunk", [None, 64])
def test_compiled_code_is_cached_on_disk_for_later_processes(chunk, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # and back to what it was, afterward
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cudnn_and_determinism, "is_compiled", lambda *_: True)
    with tracing.patch(autograd_cache_allow_custom_autograd_functions=False):
        recipe = build_recipe("moco.cifar10_r18_200ep")
        grouped = replace(recipe.method, bn="shuffle", bn_group=64)
        chunked = replace(recipe, method=grouped, chunk=chunk)
        cudnn_and_determinism.configure_torch(chunked, torch.device("cpu"))
        assert tracing.autograd_cache_allow_custom_autograd_functions
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "selfsight" / "compiled")


def test_only_a_compile_cache_of_the_user_alone_is_used(monkeypatch, tmp_path, capsys):
    """Code from it is run; root may write everywhere, so another owner is told by its number."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # and back to what it was, afterward
    torch_default = f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}"
    (tmp_path / "file").touch()
    folders = {name: tmp_path / name / "selfsight" / "compiled" for name in ("new", "own", "link")}
    folders["own"].mkdir(parents=True)
    folders["own"].chmod(0o775)  # as umask 002 leaves it
    folders["link"].parent.mkdir(parents=True)
    folders["link"].symlink_to(tmp_path)
    cases = [("new", 0, True), ("own", 0, True), ("own", 1, False), ("link", 0, False)]
    for name, other, used in [*cases, ("file", 0, False)]:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", torch_default)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "getuid", Mock(return_value=os.getuid() + other))
            persist_compile_cache()
        folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        assert (folder == folders.get(name)) == used
        assert folder.is_dir() and folder.stat().st_mode & 0o777 == 0o700
        assert ("XDG_CACHE_HOME" in capsys.readouterr().err) == (not used)


def test_evaluation_runs_what_is_not_compiled(monkeypatch):
    stances = []
    monkeypatch.setattr(
        torch.compiler, "set_stance", lambda s: (stances.append(s), torch.no_grad())[1]
    )
    network = torch.nn.Linear(2, 2)
    with eval_mode(network):
        pass
    network._compiled_call_impl = network._call_impl
    with eval_mode(network):
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
    # Backbone and projector of student and teacher, and the loss; a second method needs no others.
    assert "in 5 graphs" in found
