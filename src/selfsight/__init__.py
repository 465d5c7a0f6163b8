"""Learn image encoders from unlabeled images, and prove how good they are.

run = selfsight.pretrain("photos/")
selfsight.evaluate(run, labeled="labeled/")
backbone = selfsight.load(run)  # an nn.Module that maps images to features
"""

from typing import TYPE_CHECKING, Any

from selfsight.version import __version__

__all__ = ["METHODS", "__version__", "evaluate", "load", "pretrain"]

if TYPE_CHECKING:
    from selfsight.api import evaluate, load, pretrain
    from selfsight.methods import METHODS


def __getattr__(name: str) -> Any:
    # torch takes seconds to import, so the public names come when they are asked for.
    if name == "METHODS":
        from selfsight.methods import METHODS

        return METHODS
    if name in __all__:
        from selfsight import api

        return getattr(api, name)
    raise AttributeError(f"module 'selfsight' has no attribute '{name}'")
