"""Options of `conformance`.

The text under each field is its help. Nothing here imports torch, so that help is fast.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tyro.conf import Suppress

from selfsight.check_settings import check_settings
from selfsight.options.option_types_and_ranges import RANGES, Name


@dataclass(frozen=True, kw_only=True)
class ConformanceOptions:
    """Options of `selfsight conformance`, which are also those of `selfsight.conformance.run`."""

    backbone: Name = None
    """A backbone, or package.module:Name. If not given, two layers."""
    image_size: int = 16
    """Width of the views."""
    batch_size: int = 8
    """Images per step, of all processes."""
    compile: bool = False
    """Also trace forward as one graph, as compilation does."""
    settings: Suppress[Sequence[str]] = ()
    """Settings of the method as flags: ("--method.dim", "8")."""

    def __post_init__(self) -> None:
        check_settings(self, "", RANGES)


# Function defaults: frozen, so that sharing them is safe.
CONFORMANCE_DEFAULTS = ConformanceOptions()
