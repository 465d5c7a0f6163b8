"""What holds for every command: verbosity, hints to copy, completion, the exit status."""

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from selfsight import api
from selfsight.cli.help_page import COMMAND_LINES, EXIT_STATUS
from selfsight.cli.main import COMMANDS, main
from selfsight.cli.split_settings import list_flags
from selfsight.recipes import RECIPES
from selfsight.run_files.run_folder import Run
from selfsight.terminal.console import is_verbose, open_console
from selfsight.terminal.progress import DelayedProgress
from selfsight.train import training_progress
from selfsight.train.training_progress import ProgressBar

ROOT = Path(__file__).parents[2]
RECORD = {
    "step": 1,
    "epoch": 0.1,
    "loss": 1.0,
    "effective_rank": 3.0,
    "images_per_second": 9.0,
    "data_wait": 0.0,
    "time": 1.0,
}


def test_the_help_lists_every_command_and_every_exit_status(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    main([])
    out = capsys.readouterr().out
    for usage, text in COMMAND_LINES.items():
        assert re.search(rf"(?m)^  selfsight {re.escape(usage)} +{re.escape(text)}$", out)
    assert {usage.split()[0] for usage in COMMAND_LINES} == {*COMMANDS, "COMMAND"}
    page = (ROOT / "docs/commands.md").read_text()
    for status, meaning in EXIT_STATUS.items():
        assert status in out and meaning in out
        assert re.search(rf"\| `?{re.escape(status)}`? \|", page)


@pytest.mark.parametrize("level", ["--quiet", "--verbose", None])
def test_quiet_leaves_out_notes_and_verbose_adds_every_record(level, capsys, monkeypatch):
    monkeypatch.setattr(training_progress, "LINE_EVERY", 1e9)

    def work(data, options, **_):
        console = open_console(stderr=True)
        console.print("a note")
        open_console().print("a result")
        bar = ProgressBar(console, 10, 0, shown=True)
        bar.update(RECORD)
        bar.update(RECORD)
        with DelayedProgress("counting", 3) as counting:
            counting.started = counting.printed = -1e9  # long ago
            counting.advance()

    monkeypatch.setattr(api, "pretrain", work)
    main(["pretrain", "photos", *([level] if level else [])])
    out, err = capsys.readouterr()
    assert out == "a result\n"
    assert ("a note" in err, "counting: 1/3" in err) == (level != "--quiet",) * 2
    assert err.count("step 1/10") == {"--quiet": 0, "--verbose": 2, None: 0}[level]
    assert not is_verbose()  # ends with the command


def test_verbose_shows_the_traceback_of_a_bug(monkeypatch):
    monkeypatch.setattr("selfsight.catalog.list_methods", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["methods", "--verbose"])


@pytest.mark.parametrize("name", ["my run", "-x", "it's", "$(reboot)", "plain"])
def test_a_hint_with_the_name_of_a_run_can_be_copied(name, capsys):
    words = shlex.split(f"selfsight resume {Run(Path(name)).shell_path}")
    assert len(words) == 3 and Path(words[2]) == Path(name) and not words[2].startswith("-")
    with pytest.raises(SystemExit, match="2"):
        main(words[1:])
    assert "is not a run folder" in capsys.readouterr().err


def test_bash_completes_commands_flags_and_names(capsys):
    main(["completion", "bash"])
    script = capsys.readouterr().out
    tries = {
        "pre": {"pretrain"},
        "evaluate --proto": {"--protocols", "--protocol"},
        "pretrain photos --recipe simo.": {name for name in RECIPES if name.startswith("simo.")},
        "pretrain pho": set(),  # left to the names of files
    }
    for words in tries:
        script += f"COMP_WORDS=(selfsight {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
        script += '_selfsight; echo "${COMPREPLY[@]}"\n'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert [set(line.split()) for line in done.stdout.split("\n")[:-1]] == list(tries.values())
    assert "complete -o default" in script


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_every_flag(shell, capsys):
    main(["completion", shell])
    script = capsys.readouterr().out
    flags = {flag for command in COMMANDS.values() for flag in list_flags(command)}
    shown = flags if shell == "zsh" else {f"-l {flag.removeprefix('--')}" for flag in flags}
    assert all(flag in script for flag in shown)


def test_a_pipe_may_close_early():
    """`selfsight methods | head -1`, also with stderr in the pipe: no traceback, status 141."""
    command = f"{shlex.quote(sys.executable)} -m selfsight --help"
    line = f"set -o pipefail; PYTHONUNBUFFERED=1 {command} 2>&1 | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 141)  # 0 if all was written before the pipe closed
    assert done.stdout.startswith("selfsight ") and done.stdout.count("\n") == 1
    assert not done.stderr


def test_the_bar_shows_whole_counts_at_80_columns():
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system=None)
    bar = ProgressBar(console, 2200, 22, shown=True)
    bar.update(RECORD | {"images_per_second": 1400.0, "loss": 4.221})
    console.print(bar.progress.get_renderable())
    assert " 22/2200 " in file.getvalue()
