"""A run of a method from outside the package: trained, resumed, evaluated, exported, loaded."""

import json
import shlex
import shutil
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from PIL import Image
from rich.console import Console

import selfsight
from selfsight.backbones.foreign_checkpoints.load_backbone import load_backbone
from selfsight.catalog import build_recipe
from selfsight.cli.main import main
from selfsight.command_hint import write_command
from selfsight.encoders.load_encoder import load_recipe
from selfsight.encoders.load_run_networks import RunCheckpoint, load_method
from selfsight.errors import UserError
from selfsight.evals.select_checkpoint import select_run
from selfsight.recipe import to_dict
from selfsight.run_files.run_folder import Run
from selfsight.runs.compare_runs import compare
from selfsight.train import checkpoint
from selfsight.train.alarms import Alarms
from selfsight.train.checkpoint_schedule import Saver
from selfsight.train.training_state import State

CODE = """
from dataclasses import dataclass

from selfsight.losses.contrastive import nt_xent
from selfsight.methods import Method, MethodConfig, Step
from selfsight.nn import Encoder, mlp


@dataclass(frozen=True, kw_only=True)
class Config(MethodConfig):
    dim: int = 8

    def create(self, backbone, data):
        return Own(backbone, self)


class Own(Method):
    def __init__(self, backbone, config):
        super().__init__()
        self.student = Encoder(backbone, mlp(backbone.dim, config.dim))

    def forward(self, views, at):
        from own_package import settings  # found while training, not only at first

        (h1, z1), (_, z2) = self.student.encode_views(*views)
        return Step(loss=nt_xent(z1, z2, temperature=settings.TEMPERATURE), features=h1)
"""
NAME = "own_package.method:Config"
CPU = ("--device", "cpu")


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with images and the package, as the current one; Python forgets it at the end."""
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package/method.py").write_text(CODE)
    (tmp_path / "own_package/settings.py").write_text("TEMPERATURE = 0.5\n")
    for i in range(8):
        path = tmp_path / f"images/{'ab'[i % 2]}/{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (30 * i, 99, 200)).save(path)
    yield tmp_path
    forget()


def forget():
    """As in a new process: no module of the package, and none of its folders on the path."""
    for name in [name for name in sys.modules if name.startswith("own_package")]:
        del sys.modules[name]
    sys.path[:] = [path for path in sys.path if not (Path(path) / "own_package").exists()]


def fails(capsys, *words):
    with pytest.raises(SystemExit) as stopped:
        main([*words])
    assert stopped.value.code == 2
    return capsys.readouterr().err


def write_recipe(work):
    """A run folder as far as it decides which code is imported."""
    saved = to_dict(build_recipe("simclr.shapes")) | {"outside_code": {NAME: str(work)}}
    saved["method"] = {"name": NAME, "dim": 8, "bn": "sync", "bn_group": 32, "norm": "bn"}
    (work / "run").mkdir()
    (work / "run/recipe.json").write_text(json.dumps(saved))


@pytest.mark.slow
def test_a_run_of_one_s_own_method_is_resumed_evaluated_exported_and_loaded(
    work, monkeypatch, capsys
):
    run, options = work / "run", ("--epochs", "2", "--batch-size", "4", "--out", "run")
    main(["pretrain", "images", "--method", NAME, *options, *CPU])
    forget()
    said = capsys.readouterr().err
    assert "--labeled FOLDER --trust" in said and "load('run', trust=True)" in said
    assert json.loads((run / "recipe.json").read_text())["outside_code"] == {NAME: str(work)}
    trained = checkpoint.load(Run(run))["method"]
    elsewhere = work / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)  # the package is found where the run found it
    for words in (("resume",), ("evaluate", "--labeled", "../images"), ("export", "--to", "timm")):
        command, *options = words
        flags = () if command == "export" else CPU
        assert "--trust" in fails(capsys, command, "../run", *options, *flags)
    assert not any(name.startswith("own_package") for name in sys.modules)

    (run / "checkpoints/last.pt").unlink()
    (run / "results/verdict.json").unlink()
    monkeypatch.chdir(work)  # its recipe names images/, relative to this folder
    main(["resume", "run", "--trust", *CPU])
    again = checkpoint.load(Run(run))["method"]
    assert all(torch.equal(trained[name], again[name]) for name in {**trained, **again})

    monkeypatch.chdir(elsewhere)
    forget()
    main(["evaluate", "../run", "--labeled", "../images", "--protocol", "knn", "--trust", *CPU])
    assert list(run.glob("results/*/knn.json"))
    forget()
    main(["export", "../run", "--to", "safetensors", "--trust"])
    forget()
    encoder = selfsight.load("../run", trust=True)
    prefix = "student.backbone."
    for name, weight in encoder.backbone.state_dict().items():
        assert torch.equal(weight, trained[f"{prefix}{name}"])


def test_code_that_is_gone_is_an_error_that_says_where_it_was_and_what_to_do(work, capsys):
    write_recipe(work)
    shutil.move(work / "own_package", work / "other_name")
    said = fails(capsys, "evaluate", "run", "--labeled", "images", "--trust", *CPU)
    assert f"or in {work}, where it was when the run began" in said and "PYTHONPATH" in said
    (work / "other_name/method.py").write_text("import no_such_module\n")
    shutil.move(work / "other_name", work / "own_package")
    said = fails(capsys, "evaluate", "run", "--labeled", "images", "--trust", *CPU)
    assert "No module named 'no_such_module'" in said and "correct the module" in said


def test_resuming_by_the_whole_command_imports_nothing_from_the_folder_of_a_recipe(
    work, monkeypatch, capsys
):
    """The command names the package; only recipe.json, maybe a stranger's, names its folder."""
    write_recipe(work)
    elsewhere = work / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    words = ("pretrain", "../images", "--method", NAME, "--out", "../run", "--resume", *CPU)
    assert "No module named 'own_package'" in fails(capsys, *words)


def say_skipped(run):
    said = StringIO()
    saver, state = Mock(spec=Saver), Mock(spec=State)
    saver.keep_before.return_value = None
    state.scaler = SimpleNamespace(read_first_skipped=lambda: 3)
    recipe = build_recipe("simclr.shapes")
    Alarms(run, recipe, saver, Console(file=said), past=()).check(state, None)
    return said.getvalue()


def say_no_checkpoint(run):
    load_method(RunCheckpoint(run, None), load_recipe(run, trust=True), torch.device("cpu"))


HINTS = {
    "skipped step": (say_skipped, ["replay"]),
    "no checkpoint, backbone": (lambda run: load_backbone(str(run.path), trust=True), ["resume"]),
    "no checkpoint, method": (say_no_checkpoint, ["resume"]),
    "no analysis": (lambda run: select_run([run]), ["evaluate", "--protocol", "analysis"]),
    "no results": (lambda run: compare([run]), ["evaluate", "--labeled", "DATA"]),
}


@pytest.mark.parametrize("name", HINTS)
def test_a_hint_can_be_pasted_and_has_the_trust_that_the_run_needs(work, name):
    write_recipe(work)
    say, (command, *arguments) = HINTS[name]
    folder = work / "it's my run"
    (work / "run").rename(folder)
    try:
        said = say(Run(folder))
    except UserError as error:
        said = str(error)
    _, _, hint = said.partition(": selfsight ")
    assert shlex.split(hint) == [command, str(folder), *arguments, "--trust"]


def test_images_on_a_network_need_trust_where_they_are_read(work):
    write_recipe(work)
    run = Run(work / "run")
    saved = json.loads(run.recipe_path.read_text())
    (work / "list.txt").write_text("https://host.invalid/a.jpg\n")
    for path, trust in (
        ("https://host.invalid/a.tar", True),
        ("list.txt", True),
        ("images", False),
    ):
        saved |= {"method": {"name": "simclr"}, "data": {"path": path}}
        run.recipe_path.write_text(json.dumps(saved))
        assert write_command("resume", run).endswith(" --trust") == trust
        assert not write_command("evaluate", run, "--labeled", "images").endswith(" --trust")
    run.recipe_path.unlink()  # a folder that was deleted while its run trained
    assert write_command("resume", run) == f"selfsight resume {run.path}"
