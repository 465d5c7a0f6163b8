"""Options of `bench`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Suppress, arg

from selfsight.check_settings import check_settings
from selfsight.options.option_types_and_ranges import RANGES, Device, Folder, Images, Name, Number


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of `selfsight bench`, which are also keywords of `selfsight.bench.run`."""

    data: Images = None
    """Images to measure with. If not given, generated ones."""
    device: Device = "auto"
    """auto, cpu or cuda."""
    batch_size: Number = None
    """Images per step."""
    seconds: float = 2.0
    """Approximate time to repeat each part for."""
    against: Name = None
    """Also run the same training with another library: lightly."""
    workers: Annotated[Sequence[int], arg(metavar="INT...", help_behavior_hint="")] = ()
    """Worker processes of that library; several are tried, and the fastest is compared.
    If not given, one per core."""
    epoch_images: Number = None
    """Images in an epoch of that library. If not given, its epoch never ends."""
    cores: Number = None
    """CPU cores to use. If not given, all."""
    growth: bool = False
    """Measure how the cost of a step grows with batch, queue, views, images and processes."""
    all: bool = False
    """Measure every method, one row each, and write a table; needs no RECIPE."""
    only: Annotated[Sequence[str], arg(metavar="NAME...", help_behavior_hint="")] = ()
    """Rows of --all: networks out of resnet18, resnet50 and vit_s, and methods, or embed, linear,
    fine_tune, first_step and first_step_blocks."""
    minutes: Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="")] = None
    """Time limit of --all: a row starts only if it is expected to end in time.
    Repeat the command to continue."""
    out: Folder = None
    """Folder for the rows of --all and table.md. If not given, bench-rows."""
    settings: Suppress[Sequence[str]] = ()
    """Settings of the recipe as flags: ("--method.bn", "sync")."""

    def __post_init__(self) -> None:
        check_settings(self, "", RANGES)


BENCH_DEFAULTS = BenchOptions()
