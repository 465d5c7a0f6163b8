"""The commands on a run: pretrain, resume, replay, evaluate, report and doctor."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from selfsight.errors import UserError, escape
from selfsight.garbage_collection import frozen_imports
from selfsight.options.eval_options import EVAL_DEFAULTS, EvalOptions
from selfsight.options.option_types_and_ranges import INLINE, Number
from selfsight.options.pretrain_options import (
    DOCTOR_DEFAULTS,
    PRETRAIN_DEFAULTS,
    DoctorOptions,
    PretrainOptions,
)
from selfsight.options.report_options import REPORT_DEFAULTS, ReportOptions
from selfsight.stopwatch import process_began

Data = Annotated[str, tyro.conf.arg(metavar="DATA")]
RunFolder = Annotated[Path, tyro.conf.arg(metavar="RUN")]
RunFolders = Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN...", help_behavior_hint="")]


def pretrain(
    data: Data, /, *, options: Annotated[PretrainOptions, INLINE] = PRETRAIN_DEFAULTS
) -> None:
    """Train an encoder on images without labels (only the baseline `supervised` uses labels).

    Every setting of the recipe is also a flag: --optim.lr 0.3, --method.temperature 0.1,
    --views.0.blur 0.5. `selfsight recipes NAME` lists them with their values.

    Args:
        data: A folder (of any depth), a .txt list of files, Parquet files, torchvision:NAME,
            or a built-in set: shapes, digits.
    """
    with frozen_imports():
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
    with frozen_imports():
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
) -> Any:
    """Repeat a run up to a step that failed; name the first module whose output is not finite.

    The replay starts at the nearest checkpoint and runs uncompiled, on one process. Nothing is
    written.

    Args:
        run: Run folder.
        step: Step to look at, as in the log. If not given, the last step that was skipped, or at
            which the run diverged.
        device: auto, cpu or cuda.
        trust: Let its recipe run code from outside selfsight, and read images from a network.
            Only if you trust its author.
        json: Print JSON instead of text.
    """
    from selfsight import api

    return api.replay(run, step=step, device=device, trust=trust, quiet=json)


def evaluate(
    runs: RunFolders = (),
    /,
    *,
    options: Annotated[EvalOptions, INLINE] = EVAL_DEFAULTS,
    compare: bool = False,
    list_protocols: Annotated[bool, tyro.conf.arg(name="protocols")] = False,
    json: bool = False,
) -> Any:
    """Evaluate the encoder of one or more runs, or any other, beside the untrained network.

    Settings of a protocol that trains are also flags: --head.lr 0.3, --regularization.mixup 0,
    --set.head-lrs 0.1 1 10.

    Args:
        runs: Run folders.
        compare: Print the existing results of the runs in one table.
        list_protocols: List the protocols with their settings and sources.
        json: Print JSON instead of a table.
    """
    used = replace(options, device=EVAL_DEFAULTS.device, settings=tuple(options.settings))
    if (compare or list_protocols) and used != EVAL_DEFAULTS:
        given = "--compare" if compare else "--protocols"
        raise UserError(f"{given} evaluates nothing and has no use for other options. Omit them.")
    if list_protocols:
        from selfsight.cli import print_catalog
        from selfsight.evals.protocols import describe_protocols

        protocols = describe_protocols()
        return protocols if json else print_catalog.print_table(protocols)
    from selfsight import api

    if not runs and options.backbone is None:
        raise UserError("Give one or more run folders, or --backbone. See: selfsight evaluate -h")
    if compare:
        return api.compare(runs, quiet=json)
    results = {}
    for run in runs or (None,):
        if len(runs) > 1 and not json:
            print(f"\n{escape(str(run))}")
        results[str(run or options.backbone)] = api.evaluate(run, options, quiet=json)
    return results if len(results) > 1 else next(iter(results.values()))


def report(
    runs: RunFolders,
    /,
    *,
    options: Annotated[ReportOptions, INLINE] = REPORT_DEFAULTS,
    json: bool = False,
) -> Any:
    """Write one self-contained HTML page about a run, and serve it with --serve.

    A page about several runs has their curves in one figure, their results in one table, and the
    settings in which they differ.

    Args:
        runs: Run folder, or several.
        json: Print a summary of the page as JSON.
    """
    from selfsight import report_page as pages
    from selfsight.run_files.run_folder import Run, open_run

    if not runs:
        raise UserError("Give one or more run folders. See: selfsight report -h")
    if len(runs) > 1:
        if options.serve or json:
            raise UserError("--serve and --json need exactly one run. Name one.")
        page, problems = pages.write_several([Run(run) for run in runs], options.out)
        for problem in problems:
            print(escape(problem), file=sys.stderr)
        print(escape(f"Wrote {page}"))
        return None
    run = runs[0]
    if options.serve:
        if json:
            raise UserError("--json and --serve exclude each other. Use one of them.")
        from selfsight import api

        return api.report(run, options)
    folder = open_run(run)
    page = pages.write(folder, options.out)
    return pages.summary(folder) if json else print(escape(f"Wrote {page}"))


def doctor(
    data: Data,
    /,
    *,
    options: Annotated[DoctorOptions, INLINE] = DOCTOR_DEFAULTS,
    json: bool = False,
) -> Any:
    """Summarize a sample of the data, and show the recipe that pretrain would use.

    With flags of pretrain, such as --batch-size 4096, also show how much memory a step needs.

    Args:
        data: Images, as for pretrain.
        json: Print JSON instead of text.
    """
    from selfsight import api

    return api.doctor(data, options, quiet=json)
