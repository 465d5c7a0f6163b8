"""A run that goes wrong records the step, and a replay finds the module from a checkpoint."""

import json
import math

import pytest
import torch

from selfsight import api
from selfsight.cli.main import main
from selfsight.errors import DivergedError, UserError
from selfsight.methods.simclr import SimCLR
from selfsight.run_files.run_folder import Run
from selfsight.train import checkpoint
from tests.folders import images

SMALL = ("--method.dim", "8", "--method.hidden-dim", "16", "--backbone.name", "resnet8_narrow")
BAD_STEP = 8  # of 12, in the third epoch


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return images(tmp_path_factory.mktemp("data") / "photos", count=24)


def pretrain(photos, out, **more):
    settings = (*SMALL, "--log-every", "1", "--save-every", "1", *more.pop("settings", ()))
    return api.pretrain(
        photos,
        method="simclr",
        epochs=4,
        batch_size=8,
        device="cpu",
        out=out,
        settings=settings,
        **more,
    )


@pytest.fixture
def overflow_at(monkeypatch):
    """`overflow_at(n)`: in step n the first weights of the projector are so large they overflow."""
    original = SimCLR.forward

    def overflow(*steps):
        def spoiled(self, views, at):
            if int(at.step) + 1 not in steps:
                return original(self, views, at)
            weight = next(self.student.projector.parameters())
            kept = weight.detach().clone()
            weight.data.fill_(3e38)
            result = original(self, views, at)
            weight.data.copy_(kept)
            return result

        monkeypatch.setattr(SimCLR, "forward", spoiled)

    return overflow


@pytest.mark.slow
def test_a_skipped_step_is_recorded_and_a_replay_names_its_module(
    photos, tmp_path, overflow_at, capsys
):
    overflow_at(BAD_STEP)
    run = pretrain(photos, tmp_path / "run")
    (event,) = run.events()
    assert (event["event"], event["step"]) == ("skipped", BAD_STEP)
    assert event["run"] == str(run.path)
    assert (event["checkpoint"], event["checkpoint_step"]) == ("before_skipped.pt", 6)
    kept = checkpoint.read_step(run.checkpoints / "before_skipped.pt")
    assert kept == 6  # the last two are of steps 9 and 12
    assert f"Step {BAD_STEP} was skipped" in capsys.readouterr().err
    rows = {row["name"]: row for row in run.result("verdict")["evidence"]}
    assert f"the first was step {BAD_STEP}" in rows["skipped steps"]["meaning"]

    main(["replay", str(run.path), "--device", "cpu", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["checkpoint_step"]) == (BAD_STEP, 6)
    assert (found["phase"], found["kind"], found["skipped"]) == ("forward", "Linear", True)
    assert found["module"].startswith("student.projector")
    assert len(found["images"]) == 8
    assert set(found["images"]) < {p.relative_to(photos).as_posix() for p in photos.rglob("*.jpg")}

    for step in (BAD_STEP - 1, BAD_STEP + 1):  # their losses are those of the log
        found = api.replay(run, step=step, device="cpu", quiet=True)
        logged = {r["step"]: r["loss"] for r in run.records()}
        assert found["finite"]
        assert found["loss"] == logged[step]


def test_a_run_that_diverges_is_replayed_from_its_start_if_it_has_no_checkpoint(
    photos, tmp_path, overflow_at, capsys
):
    overflow_at(*range(2, 13))
    with pytest.raises(DivergedError, match="See where it began: selfsight replay"):
        pretrain(photos, tmp_path / "run")
    run = Run(tmp_path / "run")
    assert (run.events()[-1]["event"], run.events()[-1]["step"]) == ("diverged", 2)
    found = api.replay(run, device="cpu")
    assert not found["finite"]
    assert found["checkpoint"] is None
    assert found["module"].startswith("student.projector")
    assert found["module"] in capsys.readouterr().out
    with pytest.raises(UserError, match="are 1 to 12"):
        api.replay(run, device="cpu", step=13)
    run.events_path.write_text('{"event": "skipped"}\n')
    with pytest.raises(UserError, match="line 1, is damaged"):
        api.replay(run, device="cpu")
    run.events_path.unlink()
    with pytest.raises(UserError, match="no record of a step that went wrong"):
        api.replay(run, device="cpu")


def test_before_skipped_is_kept_though_the_last_two_have_rotated(tmp_path):
    run = Run(tmp_path)
    run.recipe_path.write_text("{}")
    saved = {"method": {}, "optimizer": {}, "scaler": {}, "probe": None}
    checkpoint.save(run, saved | {"step": 1})
    for _ in range(2):  # a second time both names are of one file
        checkpoint.keep_before_skipped(run, checkpoint.LAST)
    for step in (2, 3):
        checkpoint.save(run, saved | {"step": step, "x": torch.tensor(math.pi)})
    steps = {path.name: checkpoint.read_step(path) for path in run.checkpoints.iterdir()}
    assert steps == {"last.pt": 3, "previous.pt": 2, "before_skipped.pt": 1}
