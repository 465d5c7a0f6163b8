"""The command line. Each command is a typed function that imports torch only if it needs it."""

import contextlib
import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from selfsight.check_commands import bench, conformance, reproduce, study
from selfsight.command_words import (
    check_settings_exist,
    default_options,
    list_flags,
    split_settings,
    take_verbosity,
)
from selfsight.console import is_verbose, set_verbosity
from selfsight.encoder_commands import adapt, embed, export, search
from selfsight.errors import StoppedError, UserError, describe_failure, escape, suggest
from selfsight.flags import parse_flags
from selfsight.help_page import describe_command, print_help
from selfsight.listing_commands import methods, recipes, studies
from selfsight.options import (
    DOCTOR_DEFAULTS,
    EVAL_DEFAULTS,
    PRETRAIN_DEFAULTS,
    DoctorOptions,
    EvalOptions,
    Number,
    PretrainOptions,
)
from selfsight.run_folder import print_json
from selfsight.stop_signals import exit_status
from selfsight.stopwatch import process_began
from selfsight.version import __version__

INLINE = tyro.conf.arg(name="")  # flags of an options class without a prefix
Data = Annotated[str, tyro.conf.arg(metavar="DATA")]
RunFolder = Annotated[Path, tyro.conf.arg(metavar="RUN")]
RunFolders = Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN...", help_behavior_hint="")]


def pretrain(
    data: Data, /, *, options: Annotated[PretrainOptions, INLINE] = PRETRAIN_DEFAULTS
) -> None:
    """Train an encoder on images without labels (only the baseline `supervised` uses labels).

    Every setting of the recipe has a flag too: --optim.lr 0.3, --method.temperature 0.1,
    --views.0.blur 0.5. `selfsight recipes NAME` lists them with their values.

    Args:
        data: A folder (of any depth), a .txt list of files, Parquet files, torchvision:NAME,
            or a built-in set: shapes, digits.
    """
    from selfsight import api

    api.pretrain(data, options, began=process_began())


def resume(run: RunFolder, /, *, device: str = "auto", trust: bool = False) -> None:
    """Resume a run that stopped. A finished run does not change.

    Args:
        run: Run folder.
        device: auto, cpu or cuda.
        trust: Let its recipe run code from outside selfsight, and read images from a network.
            Only if you trust its author.
    """
    from selfsight import api

    api.resume(run, device=device, trust=trust, began=process_began())


def replay(
    run: RunFolder,
    /,
    *,
    step: Number = None,
    device: str = "auto",
    trust: bool = False,
    json: bool = False,
) -> None:
    """Repeat a run up to a step that went wrong; name the first module that is not finite.

    The replay begins at the nearest checkpoint and runs uncompiled, on one process. Nothing is
    written.

    Args:
        run: Run folder.
        step: Step to look at, as in the log. If not given, the last that was skipped, or from
            which the run diverged.
        device: auto, cpu or cuda.
        trust: Let its recipe run code from outside selfsight, and read images from a network.
            Only if you trust its author.
        json: Print JSON instead of text.
    """
    from selfsight import api

    found = api.replay(run, step=step, device=device, trust=trust, quiet=json)
    if json:
        print_json(found)


def evaluate(
    runs: RunFolders = (),
    /,
    *,
    options: Annotated[EvalOptions, INLINE] = EVAL_DEFAULTS,
    compare: bool = False,
    list_protocols: Annotated[bool, tyro.conf.arg(name="protocols")] = False,
    json: bool = False,
) -> None:
    """Evaluate the encoder of one or more runs, or any other, and the untrained one.

    Settings of a protocol that trains have flags too: --head.lr 0.3, --regularization.mixup 0,
    --set.head-lrs 0.1 1 10.

    Args:
        runs: Run folders.
        compare: Print the results that the runs already have, in one table.
        list_protocols: List the protocols with their settings and sources.
        json: Print JSON instead of a table.
    """
    if list_protocols:
        from selfsight import print_catalog
        from selfsight.evals.protocols import describe_protocols

        print_json(describe_protocols()) if json else print_catalog.print_table(
            describe_protocols()
        )
        return
    from selfsight import api

    if not runs and options.backbone is None:
        raise UserError("Give one or more run folders, or --backbone. See: selfsight evaluate -h")
    if compare:
        records = api.compare(runs, quiet=json)
        if json:
            print_json(records)
        return
    results = {}
    for run in runs or (None,):
        if len(runs) > 1 and not json:
            print(f"\n{escape(str(run))}")
        results[str(run or options.backbone)] = api.evaluate(run, options, quiet=json)
    if json:
        print_json(results if len(results) > 1 else next(iter(results.values())))


def report(run: RunFolder, /, *, json: bool = False) -> None:
    """Write one self-contained HTML page about a run.

    Args:
        run: Run folder.
        json: Print a summary of the page as JSON.
    """
    from selfsight import report_page as pages
    from selfsight.run_folder import open_run

    folder = open_run(run)
    page = pages.write(folder)
    print_json(pages.summary(folder)) if json else print(escape(f"Wrote {page}"))


def doctor(
    data: Data,
    /,
    *,
    options: Annotated[DoctorOptions, INLINE] = DOCTOR_DEFAULTS,
    json: bool = False,
) -> None:
    """Summarize a sample of the data, and show the recipe that pretrain would use.

    With flags of pretrain, such as --batch-size 4096, also what a step needs of memory.

    Args:
        data: Images, as for pretrain.
        json: Print JSON instead of text.
    """
    from selfsight import api

    summary = api.doctor(data, options, quiet=json)
    if json:
        print_json(summary)


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.arg(metavar="SHELL")], /
) -> None:
    """Print a script that lets a shell complete commands, flags and names by the tab key.

    bash: selfsight completion bash > ~/.local/share/bash-completion/completions/selfsight

    zsh: selfsight completion zsh > ~/.selfsight-completion, and in ~/.zshrc: source
    ~/.selfsight-completion

    fish: selfsight completion fish > ~/.config/fish/completions/selfsight.fish

    Args:
        shell: bash, zsh or fish.
    """
    from selfsight import catalog
    from selfsight.completion import build_script

    flags = {name: list_flags(command) for name, command in COMMANDS.items()}
    everywhere = ["--help", "--quiet", "--verbose"]
    flags = {name: [*known, *everywhere] for name, known in flags.items()}
    print(build_script(shell, flags, catalog.list_names()), end="")


COMMANDS: dict[str, Callable[..., None]] = {
    "pretrain": pretrain,
    "resume": resume,
    "replay": replay,
    "evaluate": evaluate,
    "export": export,
    "embed": embed,
    "search": search,
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
    """Run a command; what goes wrong is a sentence and an exit status."""
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
            "goes on when its command is repeated.",
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
    def prepare(*args: Any, **keywords: Any) -> Callable[[], None]:
        return functools.partial(command, *args, **keywords)

    target: Callable[..., Any] = prepare
    default, known = default_options(command), list_flags(command)
    if hasattr(default, "settings"):
        names = [*inspect.signature(command).parameters, *(f.name for f in fields(default))]
        args, settings = split_settings(args, names, nested_only=command is evaluate)
        check_settings_exist(settings, name, known)
        target = functools.partial(prepare, options=replace(default, settings=settings))
    about = describe_command(command)
    parse_flags(target, known=known, prog=f"selfsight {name}", description=about, args=args)()
