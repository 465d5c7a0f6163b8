"""`--track`: the numbers of the log reach the tracker, also those from before a resume."""

import sys
from types import SimpleNamespace

import pytest

from selfsight.errors import UserError
from selfsight.run_files.run_folder import Run
from selfsight.runs.tensorboard_wandb import LogTracker, check_tracker


@pytest.fixture
def packages(monkeypatch):
    """Stand-ins for both packages, and what they were given."""
    given = []

    class SummaryWriter:
        def __init__(self, folder):
            given.append(("folder", folder))

        def add_scalar(self, name, value, step):
            given.append((name, value, step))

        def flush(self):
            pass

    def init(**settings):
        given.append(("mode", settings["mode"]))
        log = lambda numbers, step: given.extend((k, v, step) for k, v in numbers.items())  # noqa: E731
        return SimpleNamespace(log=log)

    tensorboard = SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return given


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_tracker_gets_what_the_log_gets(name, packages, tmp_path):
    Run(tmp_path).log({"step": 1, "epoch": 0.5, "loss": 3.0, "momentum": None})  # before a resume
    run = Run(tmp_path, LogTracker(name, tmp_path).add)
    for step in (2, 3):
        run.log({"step": step, "epoch": step / 2, "loss": 3.0 - step})
    place = ("folder", str(tmp_path / name)) if name == "tensorboard" else ("mode", "offline")
    assert packages[0] == place
    numbers = {"loss": (3.0, 1.0, 0.0), "epoch": (0.5, 1.0, 1.5)}
    expected = {(k, v, i) for k, values in numbers.items() for i, v in enumerate(values, 1)}
    assert set(packages[1:]) == expected and len(packages) == 7
    assert len(run.records()) == 3  # the log is as it was


def test_a_package_that_is_missing_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"--track wandb needs .* pip install wandb"):
        check_tracker("wandb")
    check_tracker(None)
