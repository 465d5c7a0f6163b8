"""Train a study, and train an arm again to compare it with the ledger."""

import contextlib
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from selfsight import dist
from selfsight.device import adapt_to_device, resolve_device
from selfsight.errors import StoppedError, UserError, quote_word
from selfsight.options.parse_flags import change_options
from selfsight.options.study_options import STUDY_DEFAULTS, ReproduceOptions, StudyOptions
from selfsight.run_files.json_files import to_json
from selfsight.studies import ARMS, find_study, train_arms
from selfsight.studies.judge_claims import arm_results, compare_with_ledger
from selfsight.studies.ledger import (
    RESULTS,
    Entry,
    check_writable,
    read_ledger,
    read_results,
)
from selfsight.studies.plan_jobs import choose_arms, count_images, open_transfer, plan_jobs
from selfsight.terminal.console import open_console


def study(
    names: str | Sequence[str],
    options: StudyOptions = STUDY_DEFAULTS,
    /,
    *,
    quiet: bool = False,
    **changes: Any,
) -> list[dict[str, Any]]:
    """Train the arms of one study or several that are missing in the ledger; return their entries.

    Keywords are the options that `selfsight study --help` explains: `study(["methods",
    "jcl_multi_key"], data="cifar10/", seeds=(0, 1))`.

    >>> entries = selfsight.study("simsiam_comparison", quick=True, minutes=0.01,
    ...     data="shapes", ledger="ledger")  # doctest: +SKIP
    """
    options = change_options(options, changes)
    return run_study(names, options, quiet=quiet, began=time.monotonic())


def run_study(
    names: str | Sequence[str], options: StudyOptions, *, quiet: bool, began: float
) -> list[dict[str, Any]]:
    """Train the missing arms; `minutes` count from `began`, a time of the monotonic clock."""
    names = list(dict.fromkeys([names] if isinstance(names, str) else names))
    if not names:
        raise UserError("No study is named. `selfsight studies` lists them.")
    for name in names:
        find_study(name)  # before processes wait for each other
    settings = {"command": "study", "studies": names} | vars(options)
    device = resolve_device(options.device)
    with dist.process_group(device.type, settings):
        trained = _train_missing(names, options, device, quiet=quiet, began=began)
        if trained:
            _print_next_steps(names, options, open_console(quiet=quiet or dist.rank() != 0))
    return trained


def _print_next_steps(names: Sequence[str], options: StudyOptions, console: Console) -> None:
    """Print the commands that show the verdicts, if the runs count for them."""
    if options.quick:
        console.print("A --quick study shows that its arms run; its numbers are not results.")
    elif not options.held_out and not options.settings:
        folder = str(options.ledger or "")
        own = f" --ledger {quote_word(folder)}" if folder and Path(folder).is_dir() else ""
        for name in names:
            words = f"selfsight studies {name} --page {name}.html --scale {options.scale}{own}"
            console.print(f"Verdicts and figures: {words}", soft_wrap=True, highlight=False)


def _train_missing(
    names: Sequence[str],
    options: StudyOptions,
    device: torch.device,
    *,
    quiet: bool,
    began: float,
) -> list[dict[str, Any]]:
    console = open_console(quiet=quiet or dist.rank() != 0)
    ledger = Path(options.ledger) if options.ledger else RESULTS
    entries = read_ledger((RESULTS, ledger))
    studies = [find_study(name) for name in names]
    if options.data is None and options.scale not in ("cifar10", "small"):
        raise UserError(f"--data is missing: where are the images of {options.scale}?")
    jobs = plan_jobs(studies, options, lambda recipe: adapt_to_device(recipe, device)[0])
    repeat = options.quick or options.again
    alike = entries
    if options.ledger and options.data and not repeat:  # its images may be others
        count = count_images(options.scale, str(options.data))
        alike = [entry for entry in entries if entry.source_images == count]
    todo = [job for job in jobs if repeat or not job.is_done(alike)]
    if options.again:  # so that a command which is repeated for lack of time reaches every arm
        turns = [train_arms.find_turn(job, Path(options.work)) for job in todo]
        order = dist.on_first(lambda: sorted(range(len(todo)), key=turns.__getitem__))
        todo = [todo[i] for i in order]
    others = (
        " The ledger has the others: `selfsight studies NAME` shows them, --again repeats them."
        if len(todo) < len(jobs)
        else ""
    )
    console.print(
        f"{', '.join(names)} at the scale {options.scale}: {len(todo)} of {len(jobs)} runs to do."
        f"{others}"
    )
    written = None if options.quick and not options.ledger else ledger
    if todo and written is not None:
        dist.on_first(lambda: check_writable(written))
    transfer = open_transfer(options.transfer, quick=options.quick)  # a wrong path, before training
    if transfer and len(todo) < len(jobs):
        console.print(
            "--transfer scores the encoders that are trained now; with --again, also those of runs "
            "that are done."
        )
    finished = train_arms.run_jobs(
        todo,
        device,
        console,
        data=str(options.data or "torchvision:CIFAR10"),
        transfer=transfer,
        entries=entries,
        ledger=written,
        work=Path(options.work),
        began=began,
        end=None if options.minutes is None else began + 60 * options.minutes,
    )
    return [to_json(asdict(entry)) for entry in finished]


def reproduce_arm(arm: str, options: ReproduceOptions, *, quiet: bool) -> dict[str, Any]:
    """Train an arm of the ledger again, and compare it with the ledger's mean and spread."""
    name, _, short = arm.partition(".")
    scale = options.scale or ARMS[arm].scale
    choose_arms([find_study(name)], [short], scale)  # explains a scale that has no such arm
    entries = read_results(scale, options.ledger, RESULTS)
    results = arm_results(find_study(name), scale, entries)
    result = next(result for result in results if result.arm.name == short)
    if not any(entry.results for entry in result.entries.values()):
        raise UserError(
            f"The ledger has no result of {arm} with its present settings to compare with. Train "
            f"it first: selfsight study {name} --scale {scale} --arms {short}"
        )
    known = {entry.source_images for entry in result.entries.values()}
    if options.data and (count := count_images(scale, str(options.data))) not in known:
        raise UserError(
            f"{options.data} gives {count:,} training images, and {arm} was trained on "
            f"{max(known):,}. Give the same images with --data, or with --ledger the folder of "
            "results on these."
        )
    device = resolve_device(options.device)
    settings = {"command": "reproduce", "arm": arm} | vars(options)
    with dist.process_group(device.type, settings), contextlib.ExitStack() as stack:
        # An empty folder: it is trained from the start, whatever was trained before.
        folder = dist.on_first(lambda: stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            trained = _train_missing(
                [name],
                StudyOptions(
                    data=options.data,
                    scale=scale,
                    arms=(short,),
                    seeds=(options.seed or 0,),
                    again=True,
                    ledger=folder,
                    work=Path(folder) / "work",
                ),
                device,
                quiet=quiet,
                began=time.monotonic(),
            )
        except StoppedError as error:
            sentence = f"Stopped while training {arm} again. Repeat the command to start over."
            raise StoppedError(sentence, error.signal_number) from None
    (entry,) = (Entry(**saved) for saved in trained)
    compared = compare_with_ledger(entry, result, results, entries)
    if not quiet and dist.rank() == 0:
        for row in compared:
            print(
                f"{'pass' if row.passed else 'FAIL'}  {row.measure}: {row.accuracy:.2f} % against "
                f"{row.mean:.2f} ± {row.tolerance:.2f} (difference {row.accuracy - row.mean:+.2f})"
            )
        print("Another run is expected within ±, with a probability of 95 %.")
    passed = bool(compared) and all(row.passed for row in compared)
    return {"arm": arm, "passed": passed, "compared": [row._asdict() for row in compared]}
