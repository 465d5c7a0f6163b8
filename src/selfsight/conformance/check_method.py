"""Run every check on a method, and print a table."""

import shutil
import textwrap
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import tyro

from selfsight.backbones import BackboneConfig
from selfsight.conformance import contract_checks, leakage_checks, processes_and_resume_checks
from selfsight.conformance.method_under_test import (
    SMALL_BACKBONE,
    BrokenRuleError,
    DoesNotApplyError,
    Subject,
    reduce_settings,
)
from selfsight.conformance.start_processes import RankError
from selfsight.errors import UserError
from selfsight.methods import MethodConfig
from selfsight.methods.base import validate_method
from selfsight.options.conformance_options import CONFORMANCE_DEFAULTS, ConformanceOptions
from selfsight.options.parse_flags import parse_flags
from selfsight.recipe import list_differences, method_config

Check = Callable[[Subject], None]
Outcome = Literal["pass", "fail", "does not apply"]

# The docstring of each is the rule.
CHECKS: dict[str, Check] = {
    "builds": contract_checks.check_builds,
    "gradients": contract_checks.check_gradients,
    "forward keeps state": contract_checks.check_forward_keeps_state,
    "evaluation mode": contract_checks.check_evaluation_mode,
    "after_step reads the step": contract_checks.check_after_step_reads_the_step,
    "skipped step": contract_checks.check_skipped_step,
    "mask of zero": contract_checks.check_mask_of_zero,
    "teacher follows": contract_checks.check_teacher_follows,
    "repeatable": processes_and_resume_checks.check_repeatable,
    "state dict": processes_and_resume_checks.check_state_dict,
    "resume": processes_and_resume_checks.check_resume,
    "bf16": processes_and_resume_checks.check_precision,
    "teacher gradient": leakage_checks.check_teacher_gradient,
    "positives": leakage_checks.check_positives,
    "labels": leakage_checks.check_labels,
    "image index": leakage_checks.check_image_index,
    "two processes": processes_and_resume_checks.check_two_processes,
}
COMPILED: dict[str, Check] = {"compiled": processes_and_resume_checks.check_compiled}


class Result(NamedTuple):
    """The outcome of one check."""

    check: str
    outcome: Outcome
    reason: str
    seconds: float
    rule: str


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """What flags of the command can change."""

    method: MethodConfig


def run(
    name: str, options: ConformanceOptions = CONFORMANCE_DEFAULTS, *, quiet: bool = False
) -> dict[str, Any]:
    """Check the method `package.module:Config`, or one of this package; print each result."""
    subject = build_subject(name, options)
    checks = CHECKS | (COMPILED if options.compile else {})
    found = check(subject, checks)
    results = list(found if quiet else print_results(name, subject, found))
    return {
        "method": name,
        "settings": asdict(subject.method),
        "backbone": asdict(subject.backbone),
        "batch_size": subject.batch_size,
        "checks": [result._asdict() for result in results],
        "passed": all(result.outcome != "fail" for result in results),
    }


def build_subject(name: str, options: ConformanceOptions) -> Subject:
    """Import the settings class, reduce its sizes, apply flags, and validate the result."""
    config_class = method_config(name)
    try:
        config = reduce_settings(config_class())
    except TypeError as error:
        raise UserError(
            f'"{name}" cannot be built: {error}. Give every setting a default.'
        ) from None
    if options.settings:
        parsed = parse_flags(
            _Settings,
            default=_Settings(method=config),
            prog=f"selfsight conformance {name}",
            args=list(options.settings),
            config=(tyro.conf.AvoidSubcommands,),
        )
        config = parsed.method
    backbone = BackboneConfig(
        name=options.backbone or SMALL_BACKBONE, image_size=options.image_size
    )
    subject = Subject(method=config, backbone=backbone, batch_size=options.batch_size)
    if subject.batch_size % 2:
        raise UserError(f"--batch-size is {subject.batch_size}; two processes need an even number.")
    view_sizes = tuple(subject.view_sizes)
    validate_method(config, batch_size=subject.batch_size, view_sizes=view_sizes)
    for size in view_sizes:
        backbone.check_view_size(size)
    check_backbone(subject)
    return subject


def check_backbone(subject: Subject) -> None:
    """Raise a UserError if the backbone alone cannot encode the views, so no check can say more."""
    config, network = subject.backbone, subject.backbone.build()
    name = "two layers" if config.name == SMALL_BACKBONE else config.name
    for size in dict.fromkeys(subject.view_sizes):
        try:
            network(torch.zeros(subject.batch_size, config.in_channels, size, size))
        except Exception as error:  # a backbone from outside may raise anything
            raise UserError(
                f"The backbone ({name}) cannot encode views of {size} x {size} pixels: "
                f"{describe_error(error)}. Give a larger --image-size or another --backbone."
            ) from error


def check(subject: Subject, checks: dict[str, Check] = CHECKS) -> Iterator[Result]:
    """Run the checks in order; if the method does not build, the rest do not apply."""
    builds = True
    for name, function in checks.items():
        rule = " ".join((function.__doc__ or "").split())
        start = time.perf_counter()
        outcome: Outcome = "pass"
        reason = ""
        try:
            if not builds:
                raise DoesNotApplyError("It does not build.")
            function(subject)
        except DoesNotApplyError as error:
            outcome, reason = "does not apply", str(error)
        except BrokenRuleError as error:
            outcome, reason = "fail", str(error)
        except Exception as error:  # raised by the method itself
            outcome, reason = "fail", describe_error(error)
        builds = builds and (name != "builds" or outcome == "pass")
        yield Result(name, outcome, reason, round(time.perf_counter() - start, 2), rule)


def describe_error(error: Exception) -> str:
    """Name an error of a method, and the line that raised it."""
    if isinstance(error, RankError):  # ends with the traceback of the rank
        lines = str(error).strip().splitlines()
        return " ".join([lines[0], *lines[1:][-1:]])[:400]
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text} ({Path(frame.filename).name}, line {frame.lineno})"


def print_results(name: str, subject: Subject, results: Iterable[Result]) -> Iterator[Result]:
    """Print a line for each result as it comes, then how many passed."""
    changes = list_differences(asdict(type(subject.method)()), asdict(subject.method))
    changed = ", ".join(f"{setting}={value}" for setting, _, value in changes)
    print(f"{name} with {changed}" if changed else name)
    width = min(100, shutil.get_terminal_size((100, 24)).columns)
    print(f"{'check':26} {'outcome':15} seconds")
    counts = dict.fromkeys(("pass", "fail", "does not apply"), 0)
    for result in results:
        counts[result.outcome] += 1
        print(f"{result.check:26} {result.outcome:15} {result.seconds:7.2f}", flush=True)
        if result.reason:
            lines = textwrap.wrap(result.reason, width - 4, break_long_words=False)
            print("\n".join(f"    {line}" for line in lines), flush=True)
        yield result
    passed, failed, rest = counts.values()
    print(f"{passed} passed, {failed} failed, {rest} do not apply.")
