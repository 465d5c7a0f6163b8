"""Learn image encoders from unlabelled pictures, and prove how good they are.

run = sightline.pretrain("photos/")
sightline.evaluate(run, labeled="labelled/")
backbone = sightline.load(run)  # an nn.Module that maps pictures to features
"""

from typing import TYPE_CHECKING, Any

from sightline.version import __version__

__all__ = ["METHODS", "__version__", "evaluate", "load", "pretrain"]

if TYPE_CHECKING:
    from sightline.api import evaluate, load, pretrain
    from sightline.methods import METHODS


def __getattr__(name: str) -> Any:
    # torch takes seconds to import, so the public names come when they are asked for.
    if name == "METHODS":
        from sightline.methods import METHODS

        return METHODS
    if name in __all__:
        from sightline import api

        return getattr(api, name)
    raise AttributeError(f"module 'sightline' has no attribute '{name}'")
