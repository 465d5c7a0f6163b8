"""The commands that measure and check: bench, study, reproduce and conformance."""

from typing import Annotated, Any

import tyro

from selfsight.options.bench_options import BENCH_DEFAULTS, BenchOptions
from selfsight.options.conformance_options import CONFORMANCE_DEFAULTS, ConformanceOptions
from selfsight.options.option_types_and_ranges import INLINE
from selfsight.options.study_options import (
    REPRODUCE_DEFAULTS,
    STUDY_DEFAULTS,
    ReproduceOptions,
    StudyOptions,
)


def bench(
    recipe: Annotated[str | None, tyro.conf.arg(metavar="RECIPE", help_behavior_hint="")] = None,
    /,
    *,
    options: Annotated[BenchOptions, INLINE] = BENCH_DEFAULTS,
    json: bool = False,
) -> Any:
    """Measure how fast a recipe trains on this machine, each part of a step, and the network alone.

    Settings of the recipe have flags as in pretrain: --method.bn sync, --data.storage stream.

    Args:
        recipe: A recipe of `selfsight recipes`. If not given, a small one.
        json: Print JSON instead of text.
    """
    from selfsight import bench as benches

    return benches.run(recipe, options, quiet=json)


def study(
    names: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME...", help_behavior_hint="")],
    /,
    *,
    options: Annotated[StudyOptions, INLINE] = STUDY_DEFAULTS,
    json: bool = False,
) -> Any:
    """Train the arms of studies that are missing in the ledger, and write their results to it.

    Several studies share one process: images are decoded once, and networks are compiled once.

    Settings of the recipes have flags as in pretrain: --optim.lr 0.06 changes every arm.

    Args:
        names: Studies of `selfsight studies`, in the order in which they are trained.
        json: Print the new results as JSON instead of text.
    """
    from selfsight.stopwatch import process_began
    from selfsight.studies.run_study import run_study

    return run_study(names, options, quiet=json, began=process_began())


def reproduce(
    what: Annotated[str, tyro.conf.arg(metavar="RUN|STUDY.ARM")],
    /,
    *,
    options: Annotated[ReproduceOptions, INLINE] = REPRODUCE_DEFAULTS,
    json: bool = False,
) -> Any:
    """Train a run again and compare the logs, or train an arm again and compare the accuracies.

    The exit status is 1 if a number of the log differs by more than the tolerance, or if an
    accuracy is not within the 95 % interval for another run.

    Args:
        what: A run folder, or a trained arm of `selfsight studies NAME`.
        json: Print JSON instead of text.
    """
    from selfsight import api

    return api.reproduce(what, options, quiet=json)


def conformance(
    method: Annotated[str, tyro.conf.arg(metavar="MODULE:CONFIG")],
    /,
    *,
    options: Annotated[ConformanceOptions, INLINE] = CONFORMANCE_DEFAULTS,
    json: bool = False,
) -> Any:
    """Check a method: contract, two processes, resume, leakage. The exit status is 1 on a failure.

    Large settings are reduced; flags such as --method.dim 16 set them.

    Args:
        method: Settings class, importable from the current folder, or one of `selfsight methods`.
        json: Print JSON instead of a table.
    """
    from selfsight import conformance as suite

    return suite.run(method, options, quiet=json)
