"""The command line. Each command is a typed function that imports torch only if it needs it."""

import contextlib
import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Annotated, Any, Literal

import tyro

from selfsight.cli.diagnostic_commands import bench, conformance, reproduce, study
from selfsight.cli.encoder_commands import adapt, classify, embed, explore, export, search
from selfsight.cli.help_page import describe_command, print_help
from selfsight.cli.listing_commands import methods, recipes, studies
from selfsight.cli.run_commands import doctor, evaluate, pretrain, replay, report, resume
from selfsight.cli.split_settings import (
    check_settings_exist,
    default_options,
    list_flags,
    split_settings,
    take_verbosity,
)
from selfsight.errors import StoppedError, UserError, describe_failure, escape, suggest
from selfsight.options.parse_flags import parse_flags
from selfsight.run_files.json_files import print_json
from selfsight.stop_signals import exit_status
from selfsight.terminal.console import is_verbose, set_verbosity
from selfsight.version import __version__


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.arg(metavar="SHELL")], /
) -> None:
    """Print a script for tab completion of commands, flags and names in a shell.

    bash: selfsight completion bash > ~/.local/share/bash-completion/completions/selfsight

    zsh: selfsight completion zsh > ~/.selfsight-completion, and in ~/.zshrc: source
    ~/.selfsight-completion

    fish: selfsight completion fish > ~/.config/fish/completions/selfsight.fish

    Args:
        shell: bash, zsh or fish.
    """
    from selfsight import catalog
    from selfsight.cli.completion import build_script

    flags = {name: list_flags(command) for name, command in COMMANDS.items()}
    everywhere = ["--help", "--quiet", "--verbose"]
    flags = {name: [*known, *everywhere] for name, known in flags.items()}
    print(build_script(shell, flags, catalog.list_names()), end="")


# A command prints text, or with --json nothing: then what it returns is printed.
COMMANDS: dict[str, Callable[..., Any]] = {
    "pretrain": pretrain,
    "resume": resume,
    "replay": replay,
    "evaluate": evaluate,
    "export": export,
    "embed": embed,
    "search": search,
    "explore": explore,
    "classify": classify,
    "adapt": adapt,
    "report": report,
    "doctor": doctor,
    "bench": bench,
    "methods": methods,
    "recipes": recipes,
    "studies": studies,
    "study": study,
    "reproduce": reproduce,
    "conformance": conformance,
    "completion": completion,
}


def main(argv: list[str] | None = None) -> None:
    """Run a command; `selfsight --help` says what an exit status means."""
    args, level = take_verbosity(sys.argv[1:] if argv is None else argv)
    with set_verbosity(level):
        _run_and_explain(args)


def _run_and_explain(args: list[str]) -> None:
    """Run a command; turn an error into a sentence and an exit status."""
    try:
        try:
            _run(args)
        except SystemExit:  # after --help of a command
            sys.stdout.flush()
            raise
        sys.stdout.flush()  # here, where a closed pipe is handled, and not at exit
    except UserError as error:
        print(f"selfsight: {describe_failure(error)}", file=sys.stderr)
        raise SystemExit(2) from None
    except StoppedError as error:
        _print_once(f"\nselfsight: {escape(str(error))}")
        raise SystemExit(exit_status(error.signal_number)) from None
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed it
        for stream in (sys.stdout, sys.stderr):  # for the flush at exit
            with contextlib.suppress(ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise SystemExit(exit_status(signal.SIGPIPE)) from None
    except KeyboardInterrupt:
        print(
            "\nselfsight: stopped. `selfsight resume RUN` resumes a run that was training; `embed` "
            "continues when its command is repeated.",
            file=sys.stderr,
        )
        raise SystemExit(exit_status(signal.SIGINT)) from None
    except Exception as error:
        if is_verbose() or os.environ.get("SELFSIGHT_TRACEBACK"):
            raise
        print(f"selfsight: {describe_failure(error)}", file=sys.stderr)
        raise SystemExit(1) from None


def _print_once(sentence: str) -> None:
    if os.environ.get("RANK", "0") == "0":  # torchrun starts several processes
        print(sentence, file=sys.stderr)


def _run(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help", "help"):
        print_help()
        return
    if args[0] == "--version":
        print(__version__)
        return
    name, args = args[0], args[1:]
    if name not in COMMANDS:
        raise UserError(
            f'There is no command "{name}".{suggest(name, COMMANDS)} Known: {", ".join(COMMANDS)}.'
        )
    command = COMMANDS[name]

    @functools.wraps(command)
    def prepare(*args: Any, **keywords: Any) -> functools.partial[Any]:
        return functools.partial(command, *args, **keywords)

    target: Callable[..., Any] = prepare
    typed = args
    default, known = default_options(command), list_flags(command)
    if hasattr(default, "settings"):
        names = [*inspect.signature(command).parameters, *(f.name for f in fields(default))]
        args, settings = split_settings(args, names, nested_only=command is evaluate)
        check_settings_exist(settings, name, known)
        target = functools.partial(prepare, options=replace(default, settings=settings))
    about = describe_command(command)
    words = {"args": args, "typed": typed, "prog": f"selfsight {name}"}
    run = parse_flags(target, known=known, description=about, **words)
    result = run()
    if run.keywords.get("json") and result is not None:
        print_json(result)
    if isinstance(result, dict) and not result.get("passed", True):  # of reproduce, conformance
        raise SystemExit(1)
