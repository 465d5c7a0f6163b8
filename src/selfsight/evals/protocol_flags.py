"""Change the published settings of a protocol by options and flags: --epochs, --head.lr, --set."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import tyro

from selfsight.errors import UserError
from selfsight.evals.classifier_settings import ClassifierSettings
from selfsight.evals.detection import DetectorSettings
from selfsight.evals.feature_analysis import AnalysisSettings
from selfsight.evals.linear_sgd import SGDGrid
from selfsight.options.eval_options import EvalOptions
from selfsight.options.parse_flags import list_settings, parse_flags, refuse_flag

FlagSettings = ClassifierSettings | DetectorSettings | SGDGrid | AnalysisSettings
AnySettings = TypeVar("AnySettings", bound=FlagSettings)


def apply_options(training: ClassifierSettings, options: EvalOptions) -> ClassifierSettings:
    """Replace published settings by those that the user gives."""
    if options.epochs is not None:
        training = training.with_epochs(options.epochs)
    if options.batch_size is not None:
        training = replace(training, batch_size=options.batch_size)
    training = apply_flags(training, options.settings)
    names = {_flag_name(flag) for flag in options.settings}
    if "--head.lr" in names and "--set.head-lrs" in names:
        raise UserError(
            "--head.lr is one learning rate, and --set.head-lrs are those to select from. Give one "
            "of them."
        )
    return replace(training, head_lrs=()) if "--head.lr" in names else training


def apply_flags(settings: AnySettings, flags: Sequence[str]) -> AnySettings:
    """Change settings by flags: --head.lr for a nested setting, --set.NAME for one at the top."""
    if not flags:
        return settings
    names = [flag for flag, _ in list_settings(settings)]
    known = [name if "." in name else name.replace("--", "--set.") for name in names]
    for flag in flags:
        name = _flag_name(flag).replace("--set.no-", "--set.")
        if name.startswith("--backbone.") and getattr(settings, "backbone", settings) is None:
            raise UserError(
                f"{name} is of protocols that train the backbone, and here it is frozen. Leave it "
                "out, or use another, such as fine_tune.cifar10."
            )
        if name.startswith("--set.") and name not in known:
            raise refuse_flag(flag, "selfsight evaluate RUN", known)
    try:
        return _parse(settings, flags)
    except UserError as error:
        raise UserError(_name_optimizer(str(error), settings, flags)) from error


def _parse(settings: AnySettings, flags: Sequence[str]) -> AnySettings:
    parsed: AnySettings = parse_flags(
        type(settings),
        prog="selfsight evaluate RUN",
        default=settings,
        args=[flag.replace("--set.", "--", 1) for flag in flags],
        config=(tyro.conf.AvoidSubcommands,),
    )
    return parsed


def _name_optimizer(error: str, settings: FlagSettings, flags: Sequence[str]) -> str:
    """Add "head" or "backbone" to an error of the optimizer settings."""
    text = f"optim.{error}" if error.startswith("schedule.") else error
    if not text.startswith("optim."):
        return error
    for name in ("head", "backbone"):
        is_own = False
        own = [
            flag
            for flag in flags
            if (is_own := flag.startswith(f"--{name}.") if flag.startswith("--") else is_own)
        ]
        try:
            _parse(settings, own)
        except UserError:
            return text.replace("optim.", f"{name}.")
    return error


def _flag_name(flag: str) -> str:
    return flag.split("=")[0].replace("_", "-")
