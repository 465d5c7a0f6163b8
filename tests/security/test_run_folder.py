"""The run folder of a stranger runs no code, reaches no network, and writes to no other file."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from PIL import Image

from selfsight import api
from selfsight.catalog import build_recipe
from selfsight.cli.main import COMMANDS, main
from selfsight.recipe import Recipe, to_dict
from selfsight.run_files.run_folder import Run
from selfsight.runs.image_sheets import write_sheet
from selfsight.train import checkpoint
from selfsight.train.init_weights import build_method
from tests.security.hostile import CONTENTS, WRITERS

SLIM = build_recipe("simclr.shapes")
COMMANDS_OF_A_RUN = {
    "resume": ("resume", "{}"),
    "evaluate": ("evaluate", "{}"),
    "labeled": ("evaluate", "{}", "--labeled", "shapes"),
    "analysis": ("evaluate", "{}", "--protocol", "analysis"),
    "backbone": ("evaluate", "--backbone", "{}", "--labeled", "shapes"),
    "against": ("evaluate", "{}/../good", "--labeled", "shapes", "--against", "{}"),
    "checkpoint": ("evaluate", "--backbone", "{}/checkpoints/last.pt", "--labeled", "shapes"),
    "compare": ("evaluate", "{}", "--compare"),
    "report": ("report", "{}"),
    "serve": ("report", "{}", "--serve"),
    "explore": ("explore", "{}", "shapes"),
    "replay": ("replay", "{}", "--step", "1"),
    "reproduce": ("reproduce", "{}"),
}
COMMANDS_OF_A_RUN = {k: v for k, v in COMMANDS_OF_A_RUN.items() if v[0] in COMMANDS}
READS_NO_RECIPE = ("compare", "report")


@pytest.fixture
def mark(tmp_path, monkeypatch):
    """Where the code of a stranger leaves its mark; the test fails if it is there at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code = f"import os\nos.path.exists({str(tmp_path / 'mark')!r}) or os.mkdir("
    (tmp_path / "strange_code.py").write_text(f"{code}{str(tmp_path / 'mark')!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "mark"
    assert not (tmp_path / "mark").exists()
    assert "strange_code" not in sys.modules


def write_run(folder, recipe: Recipe = SLIM, **changes) -> Run:
    """A run folder with a checkpoint, as if trained; `changes` replace parts of recipe.json."""
    run = Run(folder)
    run.results.mkdir(parents=True)
    saved = to_dict(recipe)
    for key, change in changes.items():
        saved[key] = {**saved[key], **change}
    run.recipe_path.write_text(json.dumps(saved))
    method = build_method(recipe, torch.device("cpu"))
    state = {"method": method.state_dict(), "optimizer": {}, "step": 1}
    checkpoint.save(run, state | {k: {} for k in checkpoint.KEYS - state.keys()})
    return run


def fails(capsys, words):
    """The sentence of a command that is refused."""
    with pytest.raises(SystemExit) as stopped:
        main([*words, *(() if words[0] == "report" else ("--device", "cpu"))])
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("part", ["method", "backbone"])
def test_code_that_a_recipe_names_is_not_imported(part, mark, tmp_path, capsys):
    write_run(tmp_path / "good")
    run = write_run(tmp_path / "run", **{part: {"name": "strange_code:Config"}})
    run.write_result("knn", {"accuracy": 0.5})
    for name, words in COMMANDS_OF_A_RUN.items():
        words = [word.format(run.path) for word in words]
        if name in READS_NO_RECIPE:
            main(words)
            continue
        said = fails(capsys, words)
        assert "strange_code:Config" in said and "--trust" in said, name
    with pytest.raises(ValueError, match="trust=True"):
        api.load(run)


def test_code_that_the_user_trusts_is_imported(tmp_path, monkeypatch):
    code = "from tests.recipes.small import tiny_vit\n"
    (tmp_path / "trusted_code.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    backbone = {"name": "trusted_code:tiny_vit"}
    run = write_run(
        tmp_path / "run", replace(SLIM, backbone=replace(SLIM.backbone, **backbone, stem="auto"))
    )
    with pytest.raises(ValueError, match="trust=True"):
        api.load(run)
    assert api.load(run, trust=True).encode([]).shape == (0, 24)


@pytest.mark.parametrize("listed", [False, True])
def test_images_on_a_network_need_consent(listed, mark, tmp_path, capsys, monkeypatch):
    def fail(url):
        raise AssertionError(f"a request to {url}")

    monkeypatch.setattr("selfsight.data.sources.remote_files.resolve_url", fail)
    url = "https://localhost/images"
    (tmp_path / "list.txt").write_text(f"a.jpg\n{url}/a.jpg\n")
    run = write_run(tmp_path / "run", data={"path": str(tmp_path / "list.txt") if listed else url})
    for name in {"resume", "evaluate", "analysis", "replay", "serve"} & {*COMMANDS_OF_A_RUN}:
        said = fails(capsys, [word.format(run.path) for word in COMMANDS_OF_A_RUN[name]])
        assert url in said and "--trust" in said, name


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["torch", "legacy torch", "pickle"])
def test_a_checkpoint_runs_no_code(writer, mark, tmp_path, capsys):
    run = write_run(tmp_path / "run")
    good = checkpoint.load(run)
    for content in CONTENTS.values():
        for file in ("last.pt", "previous.pt"):
            hostile = content(mark)
            hostile = {**good, **hostile} if isinstance(hostile, dict) else hostile
            WRITERS[writer](run.checkpoints / file, hostile)
        for name in ("labeled", "backbone", "checkpoint"):
            fails(capsys, [word.format(run.path) for word in COMMANDS_OF_A_RUN[name]])
        with pytest.raises(ValueError, match="can be used"):
            api.load(run)


def test_links_in_the_folder_of_a_stranger_are_not_written_through(mark, tmp_path, capsys):
    """A link with the name of a file that selfsight writes may lead to any file of the user."""
    run = write_run(tmp_path / "run")
    mine = tmp_path / "mine"
    for name in ("report.html", "results/verdict.json", "results/knn.npz", "images/map.jpg"):
        for path in (run.path / name, run.path / f"{name}.part"):
            mine.write_text("mine")
            path.parent.mkdir(exist_ok=True)
            path.symlink_to(mine)
    run.write_result("verdict", {"sentence": "x"})
    run.write_arrays("knn", {})
    write_sheet(run, "map.jpg", [Image.new("RGB", (8, 8))], 1)
    main(["report", str(run.path)])
    (run.checkpoints / "last.pt.part").symlink_to(mine)
    checkpoint.save(run, checkpoint.load(run))
    for name in ("log.jsonl", "lock"):
        (run.path / name).symlink_to(mine)
    with pytest.raises(SystemExit):
        main(["resume", str(run.path), "--device", "cpu"])
    with pytest.raises(RuntimeError, match=r"log\.jsonl cannot be written"):
        run.log({"step": 1})
    assert mine.read_text() == "mine"
    assert "lock cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["results/knn.json", "images/map.jpg", "log.jsonl", "results"])
def test_the_report_publishes_nothing_from_outside_of_the_folder(name, mark, tmp_path, capsys):
    run = write_run(tmp_path / "run")
    run.images.mkdir()
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/token.json").write_text('{"token": "secret"}')
    if name == "results":
        run.results.rmdir()
    leads_to = tmp_path / "secrets" / ("" if name == "results" else "token.json")
    (run.path / name).symlink_to(leads_to)
    said = fails(capsys, ["report", str(run.path)])
    assert "outside of the run folder" in said
    assert not run.report.exists()
