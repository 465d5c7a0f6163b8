"""Learn image encoders from unlabeled images, and prove how good they are.

run = selfsight.pretrain("photos/")
selfsight.evaluate(run, labeled="labeled/")
encoder = selfsight.load(run)  # an nn.Module; encoder.transform prepares its images
features = encoder.encode(["a.jpg", "b.jpg"])

The parts can be used alone too: selfsight.methods, losses, views, optim, nn and backbones.
"""

from selfsight.version import __version__

TYPE_CHECKING = False  # without importing typing: the command handles Ctrl-C only after this
if TYPE_CHECKING:
    from typing import Any

    from selfsight import backbones, losses, methods, nn, optim, views
    from selfsight.api import (
        adapt,
        classify,
        compare,
        doctor,
        embed,
        evaluate,
        explore,
        export,
        load,
        load_classifier,
        pretrain,
        replay,
        report,
        reproduce,
        resume,
        search,
        study,
    )
    from selfsight.catalog import build_recipe
    from selfsight.methods import METHODS
    from selfsight.options.encoder_options import (
        AdaptOptions,
        ClassifyOptions,
        EmbedOptions,
        ExploreOptions,
        ExportOptions,
        SearchOptions,
    )
    from selfsight.options.eval_options import EvalOptions
    from selfsight.options.pretrain_options import DoctorOptions, PretrainOptions
    from selfsight.options.report_options import ReportOptions
    from selfsight.options.study_options import ReproduceOptions, StudyOptions
    from selfsight.recipe import Recipe

__all__ = [
    "METHODS",
    "AdaptOptions",
    "ClassifyOptions",
    "DoctorOptions",
    "EmbedOptions",
    "EvalOptions",
    "ExploreOptions",
    "ExportOptions",
    "PretrainOptions",
    "Recipe",
    "ReportOptions",
    "ReproduceOptions",
    "SearchOptions",
    "StudyOptions",
    "__version__",
    "adapt",
    "backbones",
    "build_recipe",
    "classify",
    "compare",
    "doctor",
    "embed",
    "evaluate",
    "explore",
    "export",
    "load",
    "load_classifier",
    "losses",
    "methods",
    "nn",
    "optim",
    "pretrain",
    "replay",
    "report",
    "reproduce",
    "resume",
    "search",
    "study",
    "views",
]

MODULES = ("backbones", "losses", "methods", "nn", "optim", "views")
MODULE_OF = {  # of the names that are not in selfsight.api
    "METHODS": "selfsight.methods",
    "AdaptOptions": "selfsight.options.encoder_options",
    "ClassifyOptions": "selfsight.options.encoder_options",
    "build_recipe": "selfsight.catalog",
    "DoctorOptions": "selfsight.options.pretrain_options",
    "EmbedOptions": "selfsight.options.encoder_options",
    "EvalOptions": "selfsight.options.eval_options",
    "ExploreOptions": "selfsight.options.encoder_options",
    "ExportOptions": "selfsight.options.encoder_options",
    "PretrainOptions": "selfsight.options.pretrain_options",
    "Recipe": "selfsight.recipe",
    "ReportOptions": "selfsight.options.report_options",
    "ReproduceOptions": "selfsight.options.study_options",
    "SearchOptions": "selfsight.options.encoder_options",
    "StudyOptions": "selfsight.options.study_options",
}


def __getattr__(name: str) -> "Any":
    """Import a public name when it is first used, because importing torch takes seconds."""
    import importlib

    if name in MODULES:
        return importlib.import_module(f"selfsight.{name}")
    if name in __all__:
        return getattr(importlib.import_module(MODULE_OF.get(name, "selfsight.api")), name)
    raise AttributeError(f"module 'selfsight' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
