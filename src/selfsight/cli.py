"""The command line. Each command is a typed function that imports torch only if it needs it."""

import functools
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from selfsight.bench_options import BENCH_DEFAULTS, BenchOptions
from selfsight.command_words import check_settings_exist, split_settings
from selfsight.encoder_commands import embed, export, search
from selfsight.errors import StoppedError, UserError, describe_failure, escape, suggest
from selfsight.flags import parse_flags
from selfsight.listing_commands import methods, recipes, studies
from selfsight.options import (
    CONFORMANCE_DEFAULTS,
    DOCTOR_DEFAULTS,
    EVAL_DEFAULTS,
    PRETRAIN_DEFAULTS,
    REPRODUCE_DEFAULTS,
    STUDY_DEFAULTS,
    ConformanceOptions,
    DoctorOptions,
    EvalOptions,
    Number,
    PretrainOptions,
    ReproduceOptions,
    StudyOptions,
)
from selfsight.run_folder import print_json
from selfsight.stop_signals import exit_status
from selfsight.stopwatch import process_began
from selfsight.version import __version__

HELP = f"""selfsight {__version__}: learn image encoders from unlabeled images,
and prove how good they are.

  selfsight pretrain DATA              train on a folder, a list, Parquet, or "shapes" (built in)
  selfsight resume RUN                 resume a run that stopped
  selfsight replay RUN                 where a step got a value that is not finite
  selfsight evaluate RUN...            kNN, linear, few labels, fine-tuning, ...
  selfsight export RUN --to NAME       the encoder for timm, torchvision, transformers, ONNX, ...
  selfsight embed RUN DATA             a vector for every image, as Parquet or .npy
  selfsight search RUN DATA QUERY      similar images, near-duplicates, outliers
  selfsight report RUN                 one HTML page: curves, verdict, views, map, neighbors
  selfsight doctor DATA                a summary of the data and the recipe for it
  selfsight bench                      how fast training is on this machine, and what limits it
  selfsight methods                    list the methods
  selfsight recipes                    list the recipes: settings with a name
  selfsight studies                    the papers' tables and claims, and what was trained of them
  selfsight study NAME                 train what is missing of a study
  selfsight reproduce RUN|STUDY.ARM    train a run or an arm again, and compare
  selfsight conformance MODULE:CONFIG  check whether a method of yours keeps the contract

  selfsight COMMAND --help             the options of a command
"""


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
        from selfsight import catalog
        from selfsight.evals.protocols import describe_protocols

        print_json(describe_protocols()) if json else catalog.print_table(describe_protocols())
        return
    from selfsight import api

    if not runs and options.backbone is None:
        raise UserError("Give one or more run folders, or --backbone. See: selfsight evaluate -h")
    if compare:
        records = api.compare(runs, quiet=json)
        if json:
            print_json(records)
        return
    results = {
        str(run or options.backbone): api.evaluate(run, options, quiet=json)
        for run in runs or (None,)
    }
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


def bench(
    recipe: Annotated[str | None, tyro.conf.arg(metavar="RECIPE", help_behavior_hint="")] = None,
    /,
    *,
    options: Annotated[BenchOptions, INLINE] = BENCH_DEFAULTS,
    json: bool = False,
) -> None:
    """Measure how fast a recipe trains on this machine, part by part, and its network alone.

    Settings of the recipe have flags as in pretrain: --method.bn sync, --data.storage stream.

    Args:
        recipe: A recipe of `selfsight recipes`. If not given, a small one.
        json: Print JSON instead of text.
    """
    from selfsight import bench as benches

    measured = benches.run(recipe, options, quiet=json)
    if json:
        print_json(measured)


def study(
    name: Annotated[str, tyro.conf.arg(metavar="NAME")],
    /,
    *,
    options: Annotated[StudyOptions, INLINE] = STUDY_DEFAULTS,
    json: bool = False,
) -> None:
    """Train the arms of a study that the ledger lacks, in one process; write their results to it.

    Settings of the recipes have flags as in pretrain: --optim.lr 0.06 changes every arm.

    Args:
        name: A study of `selfsight studies`.
        json: Print the new results as JSON instead of text.
    """
    from selfsight import api

    entries = api.study(name, options, quiet=json)
    if json:
        print_json(entries)


def reproduce(
    what: Annotated[str, tyro.conf.arg(metavar="RUN|STUDY.ARM")],
    /,
    *,
    options: Annotated[ReproduceOptions, INLINE] = REPRODUCE_DEFAULTS,
    json: bool = False,
) -> None:
    """Train a run again and compare the logs, or an arm of the ledger and compare the accuracies.

    The exit status is 1 if a number of the log differs by more than the tolerance, or if an
    accuracy is not within the 95 % interval for another run.

    Args:
        what: A run folder, or an arm of `selfsight studies NAME` that was trained.
        json: Print JSON instead of text.
    """
    from selfsight import api

    found = api.reproduce(what, options, quiet=json)
    if json:
        print_json(found)
    if not found["passed"]:
        raise SystemExit(1)


def conformance(
    method: Annotated[str, tyro.conf.arg(metavar="MODULE:CONFIG")],
    /,
    *,
    options: Annotated[ConformanceOptions, INLINE] = CONFORMANCE_DEFAULTS,
    json: bool = False,
) -> None:
    """Check a method: contract, two processes, resume, leakage. The exit status is 1 on a failure.

    Large settings are reduced; --method.dim 16 and the like set them.

    Args:
        method: Settings class, importable from the current folder, or one of `selfsight methods`.
        json: Print JSON instead of a table.
    """
    from selfsight import conformance as suite

    found = suite.run(method, options, quiet=json)
    if json:
        print_json(found)
    if not found["passed"]:
        raise SystemExit(1)


COMMANDS: dict[str, Callable[..., None]] = {
    "pretrain": pretrain,
    "resume": resume,
    "replay": replay,
    "evaluate": evaluate,
    "export": export,
    "embed": embed,
    "search": search,
    "report": report,
    "doctor": doctor,
    "bench": bench,
    "methods": methods,
    "recipes": recipes,
    "studies": studies,
    "study": study,
    "reproduce": reproduce,
    "conformance": conformance,
}


def main(argv: list[str] | None = None) -> None:
    """Run a command; the exit status is 0 for success, 2 for a user error, 1 for a failure."""
    args = sys.argv[1:] if argv is None else argv
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print(
            "\nselfsight: stopped. `selfsight resume RUN` resumes a run that was training; `embed` "
            "goes on when its command is repeated."
        )
        raise SystemExit(130) from None
    except Exception as error:
        if os.environ.get("SELFSIGHT_TRACEBACK"):
            raise
        print(f"selfsight: {describe_failure(error)}", file=sys.stderr)
        raise SystemExit(1) from None


def _print_once(sentence: str) -> None:
    if os.environ.get("RANK", "0") == "0":  # torchrun starts several processes
        print(sentence, file=sys.stderr)


def _run(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help", "help"):
        print(HELP, end="")
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
    parameters = inspect.signature(command).parameters
    default: Any = parameters["options"].default if "options" in parameters else None
    names = [*parameters, *(f.name for f in fields(default))] if default else [*parameters]
    words = {n for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY} | {"options"}
    known = [f"--{flag.replace('_', '-')}" for flag in names if flag not in words]
    if hasattr(default, "settings"):
        args, settings = split_settings(args, names, nested_only=command is evaluate)
        check_settings_exist(settings, name, known)
        target = functools.partial(prepare, options=replace(default, settings=settings))
    parse_flags(target, known=known, prog=f"selfsight {name}", args=args)()
