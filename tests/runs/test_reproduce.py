"""A run that is repeated from its folder is equal to the bit, or the first difference is named."""

import json
import math
import shutil

import pytest

from selfsight import api
from selfsight.catalog import build_recipe
from selfsight.cli.main import main
from selfsight.errors import UserError
from selfsight.recipe import to_dict
from selfsight.run_files.json_files import read_json, write_json
from selfsight.run_files.run_folder import Run
from selfsight.runs.environment import compare_environments
from selfsight.runs.reproduce import compare_logs
from tests.folders import images

SMALL = ("--method.dim", "8", "--method.hidden-dim", "16", "--backbone.name", "resnet8_narrow")


def record(step, **values):
    return {"step": step, "loss": 2.0, "lr": 0.1, "momentum": None, "time": step * 1.5} | values


def test_the_first_value_that_differs_is_named_and_times_are_left_out():
    logged = [record(step) for step in (10, 20, 30)]
    assert compare_logs(logged, [r | {"time": 99.0} for r in logged]) == (None, 0.0)
    other = [logged[0], record(20, lr=0.11), record(30, loss=3.0)]
    first, largest = compare_logs(logged, other)
    assert first == (20, "lr", 0.1, 0.11)
    assert largest == pytest.approx(1 / 3)
    first, largest = compare_logs(logged, logged[:2])
    assert (first.step, first.after, largest) == (30, None, math.inf)
    assert compare_logs([record(1, loss=0.0)], [record(1, loss=1e-9)])[1] == 1.0


def test_what_differs_in_the_environment_is_named():
    saved = {"versions": {"torch": "2.0.0", "python": "3.12"}, "device": "CPU", "processes": 1}
    now = {"versions": {"torch": "2.11.0", "python": "3.12"}, "device": "H200", "processes": 1}
    assert compare_environments(saved, now) == [
        "torch was 2.0.0 and is 2.11.0",
        "the device was CPU and is H200",
    ]
    assert compare_environments({}, now) == []  # an older run recorded nothing


def test_options_of_the_other_kind_are_refused(tmp_path):
    with pytest.raises(UserError, match="no use for --steps"):
        api.reproduce("methods.simclr", steps=3)
    run = Run(tmp_path / "run")
    write_json(run.recipe_path, {})
    with pytest.raises(UserError, match="no use for --ledger"):
        api.reproduce(run.path, ledger=tmp_path)


@pytest.mark.slow
def test_a_run_is_repeated_to_the_bit_and_a_difference_is_named(tmp_path, capsys):
    photos = images(tmp_path / "photos", count=24)
    settings = ("--log-every", "1", "--save-every", "1", "--repeatable", *SMALL)
    run = api.pretrain(
        photos,
        method="simclr",
        epochs=2,
        batch_size=8,
        device="cpu",
        labels=True,
        out=tmp_path / "run",
        settings=settings,
    )
    about = read_json(run.recipe_path)
    assert {"torch", "python", "selfsight"} <= about["versions"].keys()
    assert {"command", "commit", "sources", "threads", "cpu"} <= about["environment"].keys()
    capsys.readouterr()

    command = ["reproduce", str(run.path), "--device", "cpu"]
    main([*command, "--out", str(tmp_path / "again"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["weights"], found["records"]) == ("bit-equal", "equal", 6)
    assert found["warnings"] == []
    assert len(Run(tmp_path / "again").records()) == 6

    changed = Run(shutil.copytree(run.path, tmp_path / "changed"))
    lines = changed.log_path.read_text().splitlines()
    third = json.loads(lines[2]) | {"loss": 1.0}
    changed.log_path.write_text("\n".join([*lines[:2], json.dumps(third), *lines[3:]]) + "\n")
    write_json(changed.recipe_path, about | {"versions": {"torch": "1.0"}})
    cats = photos / "cats"
    (cats / "image 000.jpg").write_bytes((cats / "image 002.jpg").read_bytes())
    with pytest.raises(SystemExit, match="1"):
        main(["reproduce", str(changed.path), "--device", "cpu", "--steps", "3"])
    printed = capsys.readouterr()
    assert "Differs from step" in printed.out
    assert "loss was" in printed.out
    assert "torch was 1.0 and is" in printed.err
    assert "of the images differ" in printed.err


def test_a_run_that_names_no_images_says_where_it_comes_from(tmp_path):
    run = Run(tmp_path / "run")
    write_json(run.recipe_path, to_dict(build_recipe("simclr.shapes")))
    with pytest.raises(UserError, match=r"does not name its images: .* --data DATA to reproduce"):
        api.resume(run, device="cpu")
