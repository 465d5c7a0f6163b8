"""Every command and line of Python of the tutorial, the examples and the FAQ runs."""

import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from selfsight.cli.main import main
from tests.exporters.saved_run import save_run
from tests.folders import images
from tests.test_readme import COMMANDS as README_COMMANDS

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [
    *(
        f"tutorial/{name}.md"
        for name in (
            "first_run",
            "your_images",
            "choosing_a_method",
            "evaluating",
            "using_the_encoder",
            "many_gpus",
        )
    ),
    "faq.md",
]
# Fewer images, steps and pixels than a person has: the commands are the same otherwise.
SMALL = ["--epochs", "1", "--batch-size", "8", "--optim.schedule.warmup-epochs", "0"]


SHORT = '="runs/python", epochs=3, batch_size=8, device="cpu"'  # it warms up for two


def list_blocks(page: str) -> list[tuple[str, str]]:
    return re.findall(r"```(sh|python)\n(.*?)\n```", (DOCS / page).read_text(), re.DOTALL)


def list_commands(page: str) -> list[str]:
    blocks = [text.replace("\\\n", " ") for kind, text in list_blocks(page) if kind == "sh"]
    return [line.split("  #")[0] for text in blocks for line in text.splitlines()]


def shorten(words: list[str]) -> list[str]:
    """The same command on a CPU, with one epoch."""
    # A folder of a few images in place of the built-in set, which tests/test_learning.py trains on.
    words = ["data" if word == "shapes" else word for word in words]
    if words[0] == "pretrain" and "--resume" not in words and "--sbatch" not in words:
        for flag in ("--epochs", "--batch-size"):
            if flag in words:
                del words[words.index(flag) : words.index(flag) + 2]
        words += SMALL
    takes_device = ("pretrain", "resume", "evaluate", "embed", "search", "doctor", "classify")
    if words[0] in (*takes_device, "explore", "replay", "reproduce") and "--protocols" not in words:
        words += ["--device", "cpu"]
    return words


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with images, named as in the pages."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    images(tmp_path / "photos", count=24)
    images(tmp_path / "data", count=30)
    for name in ("photos/a.jpg", "photos/b.jpg", "query.jpg"):
        shutil.copyfile(tmp_path / "photos/cats/image 000.jpg", tmp_path / name)
    return tmp_path


def test_the_tutorial_lists_its_pages_in_order():
    nav = (DOCS / "site.yml").read_text()
    places = [nav.index(f"- {page}") for page in PAGES[:-1]]
    assert places == sorted(places)
    for page, following in pairwise(PAGES[:-1]):
        assert f"]({following[9:]}).\n" in (DOCS / page).read_text().split("Next: ")[1]


@pytest.mark.slow
def test_the_tutorial_and_the_faq_run_in_their_order(home, capsys):
    done = set()
    for page in PAGES:
        for command in list_commands(page):
            words = shlex.split(command)
            if words[0] in ("make", "source") or command in done:
                continue
            if words[0] == "torchrun" or words[1] == "adapt":  # run by the tests of these pages
                assert command in README_COMMANDS + list_commands("adapt.md")
                continue
            done.add(command)
            assert words[0] == "selfsight", command
            try:
                main(shorten(words[1:]))
            except SystemExit as stop:
                pytest.fail(f"{page}: {command}\n{stop}\n{capsys.readouterr().err}")
    assert len(done) >= 30
    for page in PAGES:
        for kind, code in list_blocks(page):
            if kind == "python":
                code = code.replace('"shapes"', '"data"').replace('="runs/python"', SHORT)
                exec(code, {})
    assert (home / "cleaned.txt").exists() and (home / "job.sh").exists()


@pytest.mark.slow
def test_the_example_of_adapt_answers(home, capsys):
    commands = list_commands("examples/adapt_or_not.md")
    assert commands[0] in list_commands("tutorial/first_run.md")
    first, second = (shlex.split(command)[1:] for command in commands[1:3])
    assert [w for w in first if w[0] == "-"] == [w for w in second if w[0] == "-"]  # names differ
    save_run(home / "runs/first", name="resnet8_narrow", image_size=32)
    words = ["data" if word == "digits" else word for word in first]
    main([*words, "--epochs", "1", "--batch-size", "8", "--device", "cpu"])
    assert re.search("(?m)^(Do not train|Use )", capsys.readouterr().out)
    assert (home / "runs/digits/encoder/model.safetensors").exists()
    shutil.copytree(home / "runs/first", home / "runs/anew")  # what the next command would train
    assert [shlex.split(command)[1] for command in commands[3:]] == ["pretrain", "evaluate"]
    main(shorten(shlex.split(commands[4].replace("runs/digits/scratch", "runs/first"))[1:]))
    assert "runs/first" in capsys.readouterr().out


@pytest.mark.slow
def test_the_example_of_a_cleaned_list_finds_copies(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for kind, block in list_blocks("examples/cleaned_list.md"):
        if kind == "python":
            exec(block.replace("600", "40").replace("60", "8"), {})
        else:
            for line in block.splitlines():
                main(shorten(shlex.split(line)[1:]))
    said = capsys.readouterr().out
    kept, pairs = map(int, re.search(r"(\d+) kept; (\d+) pairs left", said).groups())
    assert kept <= 53 - 5  # without the outliers
    assert pairs < 8  # a network after three steps finds some copies
