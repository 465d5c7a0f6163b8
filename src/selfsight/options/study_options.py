"""Options of `study` and `reproduce`.

The text under each field is its help. Nothing here imports torch, so that help is fast.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Suppress, arg

from selfsight.check_settings import check_settings
from selfsight.errors import UserError
from selfsight.options.option_types_and_ranges import (
    RANGES,
    Device,
    Folder,
    Images,
    Number,
    Scale,
    check_seeds,
)


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """Options of `selfsight study`, which are also keywords of `selfsight.study`.

    >>> options = selfsight.StudyOptions(scale="imagenette", seeds=[0, 1, 2])
    """

    data: Images = None
    """Images: a folder with train/ and test/, or with Parquet files of these names.
    If not given, torchvision:CIFAR10, which needs --scale cifar10 or small."""
    scale: Annotated[Scale, arg(metavar="NAME")] = "cifar10"
    """Data set of the arms: cifar10, imagenette, stl10, imagenet100 or imagenet; or small, which is
    5,000 images of CIFAR-10 and narrow networks: minutes an arm on a CPU."""
    arms: Annotated[Sequence[str] | None, arg(metavar="NAME...", help_behavior_hint="")] = None
    """Arms to train, as ARM or STUDY.ARM. If not given, all arms of the scale."""
    seeds: Annotated[Sequence[int], arg(metavar="INT...")] = (0,)
    """Seeds; all arms of all studies are trained with the first, then with the next."""
    minutes: Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="")] = None
    """Time limit: an arm starts only if it is expected to end in time. The first arm always starts;
    repeat the command to continue it."""
    transfer: Annotated[Sequence[str | Path], arg(metavar="DATA...", help_behavior_hint="")] = ()
    """Other labeled images, DATA or NAME=DATA, each with a training and a test split as in --data:
    every encoder that is trained is scored on them too, frozen."""
    held_out: bool = False
    """Score on a held-out tenth of the training images, to tune settings.
    The test images are not read."""
    quick: bool = False
    """Try every arm with a tiny network, few images and one epoch."""
    ledger: Folder = None
    """Folder to write the results to; arms that the package has are not trained again.
    If not given, the package's own."""
    work: Annotated[str | Path, arg(metavar="FOLDER")] = Path("runs/studies")
    """Folder for the run folders, where interrupted arms continue."""
    device: Device = "auto"
    """auto, cpu or cuda."""
    again: bool = False
    """Also train arms that are already in the ledger, last those that --work has."""
    settings: Suppress[Sequence[str]] = ()
    """Settings to change in every arm, as flags: ("--optim.lr", "0.06")."""

    def __post_init__(self) -> None:
        check_settings(self, "", RANGES)
        check_seeds(self.seeds)
        if not self.seeds:
            raise UserError("--seeds has no number. Name at least one seed, or omit it.")
        if self.arms is not None and not self.arms:
            raise UserError("--arms has no name. Name at least one arm, or omit it for all.")
        if self.held_out and self.transfer:
            raise UserError(
                "--held-out reads no test images, and --transfer scores on test images. Leave one "
                "of the two out."
            )


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """Options of `selfsight reproduce`, which are also keywords of `selfsight.reproduce`.

    >>> options = selfsight.ReproduceOptions(steps=100)
    """

    data: Images = None
    """Images. If not given, those of the run; for an arm, as for study."""
    steps: Number = None
    """Runs: number of steps to repeat. If not given, up to the last record of the log."""
    tolerance: float = 1e-3
    """Runs: largest relative difference of a number that still passes."""
    out: Folder = None
    """Runs: folder of the repeated run. If not given, a temporary one that is deleted."""
    trust: bool = False
    """Runs: allow its recipe to run code from outside selfsight, and to read images from a network.
    Use it only if you trust its author."""
    scale: Annotated[Scale | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """Arms: small, for the small version of an arm of CIFAR-10. If not given, the arm itself."""
    seed: Number = None
    """Arms: seed of the run. If not given, 0."""
    ledger: Folder = None
    """Arms: folder with results to compare with, in addition to the package's; results on other
    images take their place."""
    device: Device = "auto"
    """auto, cpu or cuda."""

    def __post_init__(self) -> None:
        check_settings(self, "", RANGES)


# Function defaults: frozen, so that sharing them is safe.
STUDY_DEFAULTS, REPRODUCE_DEFAULTS = StudyOptions(), ReproduceOptions()
