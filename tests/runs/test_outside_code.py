"""A run of a method from outside the package: trained, resumed, evaluated, exported, loaded."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import selfsight
from selfsight.catalog import build_recipe
from selfsight.cli import main
from selfsight.recipe import to_dict
from selfsight.run_folder import Run
from selfsight.train import checkpoint

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
    assert "--labeled FOLDER --trust" in said and 'load("run", trust=True)' in said
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
    assert (run / "results/knn.json").exists()
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
