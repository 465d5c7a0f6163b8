"""Tables fit the terminal: on 80 columns, and on 50 without broken words."""

import contextlib
from itertools import pairwise

import pytest
from rich.cells import cell_len

from selfsight.cli.main import main
from selfsight.recipes import RECIPES
from selfsight.terminal.console import build_table, fit_line, open_console

LISTS = (
    "methods",
    "recipes",
    "recipes swav.cifar10_r18_200ep",
    "studies",
    "studies eqco_negatives",
    "evaluate --protocols",
    "--help",
    "pretrain --help",
)


@pytest.mark.parametrize("width", [50, 80])
@pytest.mark.parametrize("words", LISTS)
def test_a_list_fits(words, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    with contextlib.suppress(SystemExit):  # of --help
        main(words.split())
    lines = capsys.readouterr().out.splitlines()
    commands = [line for line in lines if "Train: selfsight" in line]  # one line, to be copied
    assert len(commands) == (words == "studies eqco_negatives")
    assert max(cell_len(line) for line in lines if line not in commands) <= width
    if words == "recipes":
        assert set(RECIPES) <= set(" ".join(lines).split())


def test_a_line_of_help_ends_only_where_the_next_word_does_not_fit(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["pretrain", "--help"])
    pairs = pairwise(line.rstrip() for line in capsys.readouterr().out.splitlines())
    text = [
        (line, after.split()[0]) for line, after in pairs if after[:18].isspace() and after.strip()
    ]
    text = [(line, word) for line, word in text if line[:18].endswith("  ")]  # not below a flag
    assert len(text) > 20
    assert [line for line, word in text if len(f"{line} {word}") < 80] == []


RECORDS = [
    {"setting": "backbone", "value": "resnet8_narrow", "why": "small and narrow, for the CPU"},
    {"setting": "data.store_size", "value": 32, "why": "images are stored at their original size"},
]


@pytest.mark.parametrize("width", [30, 50, 80])
def test_no_word_of_a_table_is_broken(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    open_console().print(build_table(RECORDS, title="recipe"))
    text = capsys.readouterr().out
    assert max(map(cell_len, text.splitlines())) <= width
    words = {word for record in RECORDS for value in record.values() for word in str(value).split()}
    assert words <= set(text.split())
    assert ("│" in text) == (width == 80)  # records below each other where columns do not fit


def test_a_line_of_cells_is_wrapped_below_its_head():
    cells = ("   12.00 ms", "   1,000 images/s", "  50% of limit")
    assert fit_line("forward   ", cells, 80) == [
        "forward      12.00 ms   1,000 images/s  50% of limit"
    ]
    assert fit_line("forward   ", cells, 30) == [
        "forward",
        "    12.00 ms, 1,000 images/s,",
        "    50% of limit",
    ]
