"""Fixtures that several folders use."""

import contextlib
import functools
import gc
import importlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess

import pytest

gc.disable()  # nothing that is imported while tests are collected becomes garbage
# A shell starts programs in the background with these ignored, and tests send them.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# Started first, the longest before the others, so that no worker waits long for another at the end.
LONG = (
    "test_readme.py::test_the_commands",
    "test_tutorial.py::test_the_tutorial_and_the_faq",
    "test_learning.py::test_the_demo",
    "test_msbreg.py::test_with_layer_norm",
    "train/test_compile.py::test_every_traced",
    "train/test_compile.py::test_compiled_networks_have",
    "tests/test_learning.py",
    "tests/test_readme.py::test_the_python",
    "conformance/test_guide.py",
    "train/test_pretrain.py",
    "runs/test_evaluate.py",
    "recipes/test_recipes.py",
    "foreign_checkpoints/test_load_backbone.py",
    "evals/test_train_classifier.py",
    "methods/test_contract.py",
    "report_page/test_browser.py",
    "evals/detection/test_train_detector.py",
    "tests/cli/test_main.py",
    "data/decoders/test_decode_workers.py",
    "data/test_cache_files.py",
    "golden/test_golden.py",
    "nn/test_chunked_encoder.py",
    "triton_kernels/test_interpreted.py",
    "tests/test_library.py",
    "train/test_collapse.py",
)


def pytest_addoption(parser):
    parser.addoption("--gpu-json", help="write the outcome of the GPU tests here, with the commit")


def pytest_configure(config):
    """Prepare a process that runs tests: one that only starts workers (-n) needs no torch."""
    if config.getoption("numprocesses", None):
        return
    import torch

    from tests import type_checks

    if not torch.cuda.is_available():  # losses compile themselves on CUDA; checks cannot be
        type_checks.install()
    torch.set_num_threads(1)  # tests are small; two threads would mostly wait for each other


def pytest_collection(session):
    """Import the tests from another one on in every worker, so that each compiles its share.

    In a fresh clone all would else compile the same file at the same time.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    files = []
    for path in (session.config.rootpath / arg.partition("::")[0] for arg in session.config.args):
        files += sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
    worker = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    first = len(files) * worker // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for path in files[first:] + files[:first]:
        name = path.relative_to(session.config.rootpath).with_suffix("").as_posix()
        # what cannot be imported is reported when it is collected
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name.replace("/", "."))


def pytest_collection_modifyitems(items):
    import torch

    def order(item):
        place = [i for i, long in enumerate(LONG) if long in item.nodeid]
        return ("two_processes" not in item.fixturenames, min(place, default=len(LONG)))

    items.sort(key=order)
    if not torch.cuda.is_available():
        reason = "needs a CUDA device; `make gpu` runs these on a machine that has one"
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Let one worker run what shares a set-up: a module, and all tests of the process groups.

    Slow tests are few and share little: each goes to the worker that is free.
    """
    from xdist.scheduler import LoadScopeScheduling

    alone = config.option.markexpr.startswith("slow")

    @functools.cache
    def of_the_group(file):
        text = (config.rootpath / file).read_text()
        return re.findall(r"^def (test_\w+)\([^)]*\b(?:two|four)_processes\b", text, re.MULTILINE)

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file, _, name = nodeid.partition("::")
            if name.partition("[")[0] in of_the_group(file):
                return "processes"
            return nodeid if alone else file

    return Scheduling(config, log)


def pytest_collection_finish():
    gc.freeze()  # or every search for garbage would go through all that was imported
    gc.enable()
    gc.set_threshold(10_000, 50, 50)  # and would be made ten times as often


def pytest_terminal_summary(terminalreporter, config):
    path = config.getoption("--gpu-json")
    if not path:
        return
    import torch

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
    import torch

    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # without a GPU, torch notes the call and its stack for each kind that may yet start
        torch.default_generator.manual_seed(0)


def start_processes(number):
    from tests.dist.processes import Processes  # imports selfsight, which must be checked

    return Processes(number)


@pytest.fixture(scope="session")
def two_processes():
    """One process group of two that serves every test of the session."""
    with start_processes(2) as group:
        yield group


@pytest.fixture(scope="session")
def four_processes():
    """One process group of four that serves every test of the session."""
    with start_processes(4) as group:
        yield group


@pytest.fixture(scope="module")
def browser():
    """Chromium, which opens pages from the disk."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no browser: install Debian's chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--headless"]
        started = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield started
        started.close()
