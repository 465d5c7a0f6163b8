"""Options of `pretrain` and `doctor`, each declared once: for the command line, Python, the code.

The text under each field is its help. Nothing here imports torch, so that help is fast.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from tyro.conf import Suppress, arg

from selfsight.check_settings import check_settings
from selfsight.errors import UserError
from selfsight.options.option_types_and_ranges import (
    RANGES,
    ClassNames,
    Device,
    Domain,
    File,
    Folder,
    Name,
    Number,
    check_seeds,
)


@dataclass(frozen=True, kw_only=True)
class PretrainOptions:
    """Options of `selfsight pretrain`, which are also keywords of `selfsight.pretrain`.

    >>> options = selfsight.PretrainOptions(method="moco", epochs=50)
    """

    method: Name = None
    """A method of `selfsight methods`. If not given, chosen from the data."""
    recipe: Annotated[Any, arg(metavar="NAME", constructor=str, help_behavior_hint="")] = None
    """A recipe of `selfsight recipes`, an arm of `selfsight studies` (STUDY.ARM), my.json, or
    my.py:function, whose code is run. In Python, also a Recipe. If not given, chosen."""
    init: Name = None
    """Encoder to start from: timm:NAME, a run folder, FILE or NETWORK=FILE, as for evaluate
    --backbone. Its backbone is trained at a tenth of the learning rate (--start.lr-factor);
    --start.freeze N freezes its first N stages or blocks. If not given, random weights.
    """
    epochs: Number = None
    """Passes over the images. If not given, as the recipe says; an automatic one has as many as 20
    minutes allow on a CPU and 10 on a GPU, by a few steps that are timed; on a GPU at least 100."""
    batch_size: Number = None
    """Images per step, summed over all processes. If not given, as the recipe says."""
    seed: Number = None
    """Seed of weights, order and views: the same seed gives the same run. If given, automatic
    epochs follow from the images alone, not from the speed."""
    seeds: Annotated[Sequence[int], arg(metavar="INT...", help_behavior_hint="")] = ()
    """Train once with each of these seeds, in the run folders OUT-seedN, and print mean and spread.
    Repeat the command to continue: it resumes interrupted runs and skips finished ones."""
    parallel: Number = None
    """--seeds: number of runs at a time, each in a process. If not given, one per GPU, else one."""
    keep_epochs: Annotated[Sequence[int], arg(metavar="INT...", help_behavior_hint="")] = ()
    """Epochs whose checkpoint is kept, as RUN/checkpoints/epoch_N.pt.
    The last two checkpoints are always kept."""
    device: Device = "auto"
    """auto, cpu or cuda."""
    out: Folder = None
    """Run folder. If not given, runs/DATA-METHOD."""
    resume: bool = False
    """Resume the run if the folder holds one, else start it, so that a scheduler can repeat the
    command. Settings that differ from those of the run are an error."""
    overwrite: bool = False
    """Replace the run in the folder. It is deleted when the new run saves its first checkpoint."""
    track: Annotated[
        Literal["tensorboard", "wandb"] | None, arg(metavar="NAME", help_behavior_hint="")
    ] = None
    """Copy the log to tensorboard (RUN/tensorboard) or wandb (RUN/wandb, offline unless WANDB_MODE
    says online), whose package must be installed."""
    sbatch: File = None
    """Write a SLURM script for this command to FILE, and do not train. When the time of the job is
    over, it is queued again and resumes the run."""
    classes: ClassNames = ()
    """Classes to use: imagenet100, a file that lists them, their names, or all.
    If not given, as the recipe says."""
    labels: bool = False
    """Read labels from sub-folders, for evaluation during training."""
    label_column: Name = None
    """Column of the labels in Parquet, for the same purpose. If not given, the first that is named
    or described as labels."""
    part: Annotated[str | None, arg(metavar="PREFIX", help_behavior_hint="")] = None
    """--init: prefix of the weights to load, from a file that holds several encoders."""
    stem: Name = None
    """--init: stem of a ResNet in a file, as for evaluate --stem."""
    trust: bool = False
    """--init: allow a file of weights, or the recipe of a run, to run code when it is read."""
    domain: Domain = "auto"
    """What the images show, which decides the views: photographs, microscopy, satellite or
    documents. auto: 8-bit gray or color images are photographs; for others a sample decides."""
    settings: Suppress[Sequence[str]] = ()
    """Settings of the recipe as flags: ("--optim.lr", "0.3")."""

    def __post_init__(self) -> None:
        check_settings(self, "", RANGES)
        if self.method is not None and self.recipe is not None:
            raise UserError("Give --method or --recipe, not both: a recipe names its method.")
        check_seeds(self.seeds)
        if self.seed is not None and self.seeds:
            raise UserError("Give --seed or --seeds, not both.")
        if self.parallel is not None and not self.seeds:
            raise UserError("--parallel needs --seeds. Name the seeds to train at a time.")


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Options of `selfsight doctor`, which are also keywords of `selfsight.doctor`.

    >>> options = selfsight.DoctorOptions(method="moco", batch_size=512)
    """

    method: Name = None
    """As for pretrain, to see its recipe and how much memory a step needs."""
    recipe: Annotated[Any, arg(metavar="NAME", constructor=str, help_behavior_hint="")] = None
    """As for pretrain. Settings of the recipe have flags too: --activation-checkpointing."""
    batch_size: Number = None
    """As for pretrain."""
    device: Device = "auto"
    """auto, cpu or cuda."""
    sample: int = 512
    """Number of images to read."""
    settings: Suppress[Sequence[str]] = ()
    """Settings of the recipe as flags: ("--chunk", "64")."""

    def __post_init__(self) -> None:
        check_settings(self, "", RANGES)


# Function defaults: frozen, so that sharing them is safe.
PRETRAIN_DEFAULTS, DOCTOR_DEFAULTS = PretrainOptions(), DoctorOptions()
