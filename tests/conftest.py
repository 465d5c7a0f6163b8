"""Fixtures that several folders use."""

import json
import platform
import signal
import subprocess

import pytest
import torch

from tests import type_checks
from tests.dist.processes import Processes

if not torch.cuda.is_available():  # losses compile themselves on CUDA; checks cannot be compiled
    type_checks.install()
# A shell starts programs in the background with these ignored, and tests send them.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)
torch.set_num_threads(1)  # tests are small; two threads would mostly wait for each other

LONG = (
    "train/test_pretrain.py",
    "runs/test_evaluate.py",
    "bench/test_scaling.py",
    "detection/test_train.py",
    "report/test_browser.py",
    "recipes/test_recipes.py",
    "evals/test_classifier.py",
    "data/test_workers.py",
)


def pytest_addoption(parser):
    parser.addoption("--gpu-json", help="write the outcome of the GPU tests here, with the commit")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    # The longest first: at the end of a run no worker waits long for another.
    items.sort(
        key=lambda item: (
            "two_processes" not in item.fixturenames and not item.path.as_posix().endswith(LONG)
        )
    )
    for item in items:  # what tests share, a worker of xdist sets up once: a module, or the group
        shared = "two_processes" if "two_processes" in item.fixturenames else item.path.name
        item.add_marker(pytest.mark.xdist_group(shared))
    if not torch.cuda.is_available():
        reason = "needs a CUDA device; `make gpu` runs these on a machine that has one"
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter, config):
    path = config.getoption("--gpu-json")
    if not path:
        return
    stats = terminalreporter.stats
    commit = subprocess.run(
        ["git", "rev-parse", "--verify", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    outcome = {
        "commit": commit or None,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        **{
            kind: [report.nodeid for report in stats.get(kind, [])]
            for kind in ("passed", "failed", "error", "skipped")
        },
    }
    with open(path, "w") as file:
        json.dump(outcome, file, indent=2)


@pytest.fixture(autouse=True)
def _seed():
    """Give every test the same random numbers, whichever tests ran before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def two_processes():
    """One process group of two that serves every test of the session."""
    with Processes(2) as group:
        yield group


@pytest.fixture(scope="session")
def four_processes():
    """One process group of four that serves every test of the session."""
    with Processes(4) as group:
        yield group
