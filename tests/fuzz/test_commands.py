"""Random command lines: valid and invalid words of every command, in any order."""

import contextlib
import functools
import inspect
import io
import os
import random
import shutil
from dataclasses import fields
from pathlib import Path

import jaxtyping
import pytest
import torch

import selfsight
from selfsight import api
from selfsight.cli.main import COMMANDS, main
from selfsight.methods import METHODS
from tests.folders import images
from tests.fuzz.cases import SEED, STOPPED, assert_none_failed, pick_cases, run_case, stop_after
from tests.fuzz.test_settings import WORDS, small_recipe

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

COUNT = 3000
BATCH = 25  # lines that a process runs
BEGIN, END = "a command line begins", "its status is"
PARSED = "the command line is parsed"  # printed by the function that a command calls
PLACES = ["photos", "run", "no/such", "photos/cats", "run/recipe.json", "[/b]", ".", "-"]
SETTINGS = [  # of a recipe or a protocol
    *("optim.lr", "optim.name", "optim.betas", "optim.schedule.warmup-epochs", "views.0.size"),
    *("views.0.scale", "views.1.order", "views.9.size", "method.temperature", "method.dim"),
    *("method.queue-size", "backbone.name", "data.storage", "compile", "no-compile", "save-every"),
    *("head.lr", "set.epochs", "set.lrs", "regularization.mixup", "optim", "views", "x.y.z", ""),
]
FORMATS = ("safetensors", "torchvision", "timm", "hf", "onnx", "detectron2")
VALID = {  # words that a flag is often followed by
    "device": ["cpu", "cuda", "auto", "tpu"],
    "method": [*METHODS, "mocov4", "tests.methods.small:Tiny"],
    "recipe": ["simclr.shapes", "moco.imagenet_v2_200ep", "nothing"],
    "epochs": ["1", "2", "0", "-1", "1e3"],
    "batch-size": ["4", "8", "1", "0", "1000000000"],
    "protocol": ["knn", "linear", "analysis", "detection.voc_c4", "nothing"],
    "labeled": PLACES,
    "data": PLACES,
    "out": ["out", "run", "photos", "/proc/x", ""],
    "sbatch": ["job.sh", "/proc/x", "photos"],
    "scale": ["cifar10", "imagenet", "none"],
    "seconds": ["0.01", "0", "nan"],
}


def flags_of(command: str) -> list[str]:
    """The flags that a command has."""
    names = []
    for name, parameter in inspect.signature(COMMANDS[command]).parameters.items():
        if name == "options":
            names += [field.name for field in fields(parameter.default)]
        elif parameter.kind is parameter.KEYWORD_ONLY:
            names.append(name)
    aliases = {"protocols": "protocol", "list_protocols": "protocols"}
    return [aliases.get(name, name).replace("_", "-") for name in names]


def value_of(flag: str, rng: random.Random) -> str:
    known = VALID.get(flag)
    return rng.choice(known) if known and rng.random() < 0.7 else rng.choice([*WORDS, *PLACES])


def any_line(rng: random.Random) -> list[str]:
    """A command with flags of its own and of others, values of any kind, all in any order."""
    command = rng.choice(
        [*COMMANDS, *COMMANDS, "pretrian", "", "--help", "-h", "--version", "[/b]"]
    )
    flags = flags_of(command) if command in COMMANDS else ["epochs"]
    groups = [[rng.choice(PLACES)] for _ in range(rng.choice([0, 1, 1, 1, 2]))]
    for _ in range(rng.randrange(5)):
        flag = rng.choice([*flags, *flags, *SETTINGS, *rng.choice(list(VALID)).split()])
        flag = rng.choice([flag] * 6 + [flag.replace("-", "_"), flag.upper(), f"no-{flag}"])
        values = [value_of(flag, rng) for _ in range(rng.choice([0, 1, 1, 1, 1, 2, 4]))]
        if values and rng.random() < 0.2:
            groups.append([f"--{flag}={values[0]}", *values[1:]])
        else:
            groups.append([f"--{flag}", *values])
    groups += [[rng.choice(["--", "-h", "--help", "-x", "--json", "---", "--=", "-1"])]] * (
        rng.random() < 0.15
    )
    rng.shuffle(groups)
    return [command, *(word for group in groups for word in group)]


def good_line(rng: random.Random) -> list[str]:
    """A command line that is parsed: flags of the command, each with a value of its kind."""
    lines = [
        lambda: ["pretrain", rng.choice(PLACES[:4]), "--device", "cpu", "--sbatch", "job.sh"],
        lambda: ["pretrain", rng.choice(PLACES[1:]), "--device", "cpu", "--out", "out"],
        lambda: ["resume", rng.choice(PLACES), "--device", "cpu"],
        lambda: ["evaluate", *rng.choices(PLACES, k=rng.randrange(1, 3)), "--compare"],
        lambda: ["evaluate", rng.choice(PLACES), "--labeled", rng.choice(PLACES), "--k", "3"],
        lambda: ["evaluate", "--protocols"],
        lambda: ["report", rng.choice(PLACES)],
        lambda: ["doctor", rng.choice(PLACES), "--sample", "4"],
        lambda: [rng.choice(["methods", "recipes", "studies"])],
        lambda: [rng.choice(["recipes", "studies"]), rng.choice([*VALID["recipe"], "moco"])],
        lambda: ["study", rng.choice(["methods", "nothing"]), "--data", rng.choice(PLACES)],
        lambda: ["reproduce", rng.choice(["methods.x", *PLACES])],
        lambda: ["replay", rng.choice(PLACES)],
        lambda: ["export", rng.choice(PLACES), "--to", rng.choice([*FORMATS, "nothing"])],
        lambda: ["embed", rng.choice(PLACES), rng.choice(PLACES), "--out", "vectors"],
        lambda: ["search", "run", rng.choice(PLACES), rng.choice(PLACES), "--out", "found"],
        lambda: ["classify", rng.choice(PLACES), "--labeled", rng.choice(PLACES), "--overwrite"],
        lambda: ["classify", "run", "--predict", rng.choice(PLACES), "--out", "found.csv"],
        lambda: ["explore", rng.choice(PLACES), rng.choice(PLACES), "--out", "map.html"],
        lambda: ["adapt", rng.choice(PLACES), "--init", rng.choice(PLACES[2:])],
        lambda: ["conformance", rng.choice(VALID["method"][-2:]), "--image-size", "1"],
        lambda: ["completion", rng.choice(["bash", "zsh", "x"])],
    ]
    line = rng.choice(lines)()
    flags = flags_of(line[0])
    if "settings" in flags and line[0] == "pretrain":
        name = rng.choice(["moco", "simclr", "mocov3"])
        line += ["--method", name, "--epochs", rng.choice(["1", "2", "0", "-3"])]
        line += rng.choice([["--optim.lr", rng.choice(["0.1", "1e308", "nan"])], [], ["--labels"]])
    if "json" in flags and rng.random() < 0.5:
        line.append("--json")
    return line


def all_lines() -> list[list[str]]:
    rng = random.Random(SEED)
    return [good_line(rng) if i % 5 < 2 else any_line(rng) for i in range(COUNT)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images, a finished run, and every module imported that a command may need."""
    folder = tmp_path_factory.mktemp("commands")
    images(folder / "photos", count=12, size=(16, 16))
    before = Path.cwd()
    os.chdir(folder)
    jaxtyping.config.update("jaxtyping_disable", True)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        selfsight.pretrain("photos", recipe=small_recipe("moco"), out="run", device="cpu")
        selfsight.evaluate("run", labeled="photos", device="cpu")
        api.doctor("photos")
        main(["evaluate", "run", "--compare"])
        main(["recipes"])
    yield folder
    jaxtyping.config.update("jaxtyping_disable", False)
    os.chdir(before)


def run_lines(lines: list[list[str]], work: Path) -> None:
    """Run one after the other in this process, and print where each begins and its status."""
    os.chdir(work)
    torch.set_num_threads(1)
    stop_after(1)
    for name, command in list(COMMANDS.items()):
        COMMANDS[name] = announce(command)
    for words in lines:
        print(BEGIN, flush=True)
        status: object = 0
        try:
            main(words)
        except SystemExit as stop:
            status = stop.code
        print(f"{END} {status}", flush=True)


def announce(command):
    @functools.wraps(command)
    def call(*args, **kwargs):
        print(PARSED)
        return command(*args, **kwargs)

    return call


def judge(output: str) -> str | None:
    """None if a line held, else what is wrong with it."""
    said, _, status = output.partition(END)
    if status.strip() not in ("0", "1", "2", str(STOPPED)):
        return f"status {status.strip() or 'none'}: {said}"
    if "Traceback (most recent call last)" in said or "This is a bug in selfsight" in said:
        return said
    return None if status.strip() == "0" or said.replace(PARSED, "").strip() else "not a word"


def test_a_random_command_line_never_ends_in_a_traceback(folder, tmp_path, record_property):
    lines = pick_cases(all_lines(), few=20, full=COUNT)
    outputs: dict[int, str] = {}
    while len(outputs) < len(lines):
        work = tmp_path / f"work {len(outputs)}"
        work.mkdir()
        (work / "photos").symlink_to(folder / "photos")
        shutil.copytree(folder / "run", work / "run")
        batch = lines[len(outputs) : len(outputs) + BATCH]
        outcome = run_case(run_lines, batch, work, seconds=BATCH * 10)
        shutil.rmtree(work)
        # If the process ended early, by a crash or the limit of time, its last line is to blame,
        # and the lines after it are run by the next.
        for said in outcome.output.split(BEGIN)[1:]:
            outputs[len(outputs)] = said
        if outcome.failure not in (None, "traceback", "bug"):
            outputs[len(outputs) - 1] += f"\n{outcome.failure}"
    parsed = sum(PARSED in said for said in outputs.values())
    cases = list(enumerate(lines))
    name = f"random command lines, {parsed} of them past parsing"
    assert_none_failed(name, cases, lambda case: judge(outputs[case[0]]), record_property)
    assert parsed >= len(lines) / (3 if len(lines) >= 100 else 5)  # few lines scatter
