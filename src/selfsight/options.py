"""Options of the commands, each declared once: for the command line, for Python, for the code.

The text under each field is its help. Nothing here imports torch, so that help comes at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Suppress, arg

from selfsight.errors import UserError
from selfsight.settings import (
    COUNT,
    EPOCHS,
    PIXELS,
    POSITIVE,
    SEED,
    SHARE,
    Range,
    check_settings,
)

# Options without a default say themselves what happens if they are not given.
Name = Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")]
Number = Annotated[int | None, arg(metavar="INT", help_behavior_hint="")]
Images = Annotated[str | Path | None, arg(metavar="DATA", help_behavior_hint="")]
Folder = Annotated[str | Path | None, arg(metavar="FOLDER", help_behavior_hint="")]
File = Annotated[str | Path | None, arg(metavar="FILE", help_behavior_hint="")]
ClassNames = Annotated[
    str | Path | tuple[str, ...], arg(metavar="NAME...|FILE", help_behavior_hint="")
]
Device = Annotated[str, arg(metavar="NAME")]
Domain = Annotated[
    Literal["auto", "photographs", "microscopy", "satellite", "documents"], arg(metavar="NAME")
]

RANGES: dict[str, Range] = {
    "epochs": EPOCHS,
    "batch_size": Range(1, 10**7),
    "seed": SEED,
    "seeds": SEED,
    "keep_epochs": EPOCHS,
    "k": COUNT,
    "temperature": POSITIVE,
    "last_blocks": COUNT,
    "image_size": PIXELS,
    "iterations": COUNT,
    "share": SHARE,
    "sample": COUNT,
    "workers": COUNT,
    "epoch_images": COUNT,
    "cores": COUNT,
    "per_class": COUNT,
    "seconds": Range(0, 3600, low_allowed=False),
    "minutes": Range(0, 10**7),
    "steps": COUNT,
    "tolerance": Range(0),
    "shard_size": Range(1, 10**7),
    "count": COUNT,
    "similarity": Range(-1, 1),
}


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
    --start.freeze N leaves its first N stages or blocks as they are. If not given, random weights.
    """
    epochs: Number = None
    """Passes over the images. If not given, as the recipe says."""
    batch_size: Number = None
    """Images per step, summed over all processes. If not given, as the recipe says."""
    seed: Number = None
    """Seed of weights, order and views: the same seed gives the same run."""
    keep_epochs: Annotated[Sequence[int], arg(metavar="INT...", help_behavior_hint="")] = ()
    """Epochs after which a checkpoint is kept, as RUN/checkpoints/epoch_N.pt.
    The last two checkpoints are always there."""
    device: Device = "auto"
    """auto, cpu or cuda."""
    out: Folder = None
    """Run folder. If not given, runs/DATA-METHOD."""
    resume: bool = False
    """Resume the run if the folder holds one, else start it. The same command line serves a
    scheduler that repeats it; other settings than the run has are refused."""
    overwrite: bool = False
    """Replace the run in the folder. It is deleted when the new one saves its first checkpoint."""
    track: Annotated[
        Literal["tensorboard", "wandb"] | None, arg(metavar="NAME", help_behavior_hint="")
    ] = None
    """Copy the log to tensorboard (RUN/tensorboard) or wandb (RUN/wandb, offline unless WANDB_MODE
    says online), whose package must be installed."""
    sbatch: File = None
    """Write a SLURM script for this command to FILE, and do not train. The job resumes its run
    when its time was over."""
    classes: ClassNames = ()
    """Classes to use: imagenet100, a file that lists them, their names, or all.
    If not given, as the recipe says."""
    labels: bool = False
    """Read labels from sub-folders, for evaluation during training."""
    label_column: Name = None
    """Column of the labels in Parquet, for the same. If not given, the first that is called or
    described as labels."""
    part: Annotated[str | None, arg(metavar="PREFIX", help_behavior_hint="")] = None
    """--init: prefix of the weights to load, from a file that holds several encoders."""
    stem: Name = None
    """--init: stem of a ResNet in a file, as for evaluate --stem."""
    trust: bool = False
    """--init: let a file of weights, or the recipe of a run, run code when it is read."""
    domain: Domain = "auto"
    """What the images are of, which decides the views: photographs, microscopy, satellite or
    documents. auto: photographs are 8-bit gray or color, and others are described by a sample."""
    settings: Suppress[Sequence[str]] = ()
    """Settings of the recipe as flags: ("--optim.lr", "0.3")."""

    def __post_init__(self) -> None:
        check_settings(self, "", RANGES)
        if self.method is not None and self.recipe is not None:
            raise UserError("Give --method or --recipe, not both: a recipe names its method.")


@dataclass(frozen=True, kw_only=True)
class EncoderOptions:
    """Which encoder, and the transform of its images: options of evaluate, export and embed."""

    backbone: Name = None
    """Any encoder in place of a run: timm:NAME, torchvision:NAME, FILE or NETWORK=FILE.
    A file holds weights, such as a published checkpoint."""
    image_size: Number = None
    """Side of the input in pixels. If not given, that of training."""
    preprocess: Annotated[str, arg(metavar="NAME")] = "standard"
    """Transform of the images: standard, the same for all encoders, or native, that of timm or
    torchvision for their networks. Mean and std are the network's own in both."""
    part: Annotated[str | None, arg(metavar="PREFIX", help_behavior_hint="")] = None
    """Prefix of the weights to load, from a file that holds several encoders."""
    stem: Name = None
    """Stem of a ResNet in a file of weights, if its first convolution is 3 x 3: lowres (stride 1),
    half (stride 2) or lowres_pad2 (padding 2). If not given, as in the project that wrote it."""
    trust: bool = False
    """Let files of weights, and recipes of run folders, run code and reach a network when read.
    Only if you trust their author."""

    def __post_init__(self) -> None:
        check_settings(self, "", RANGES)


@dataclass(frozen=True, kw_only=True)
class EvalOptions(EncoderOptions):
    """Options of `selfsight evaluate`, which are also keywords of `selfsight.evaluate`.

    A protocol ignores the options that it has no use for; one that no protocol uses is an error.

    >>> selfsight.EvalOptions(k=20).neighbor_counts
    (20,)
    """

    labeled: Images = None
    """Labeled images: a folder with a sub-folder per class, Parquet, or a built-in set.
    Its train/ and val/ or test/ are used if present, else a seeded 80/20 split."""
    test: Images = None
    """Labeled test images, if they are in another place."""
    label_column: Name = None
    """Column of the labels in Parquet; a column of lists has several classes per image.
    If not given, the first that is called or described as labels."""
    classes: ClassNames = ()
    """Classes to use: imagenet100, a file that lists them, their names, or all.
    If not given, those of the run if the labeled images have them all, else all."""
    protocols: Annotated[
        Sequence[str], arg(name="protocol", metavar="NAME...", help_behavior_hint="")
    ] = ()
    """Protocols to run; --protocols lists their names.
    If not given: knn and linear, or without --labeled what needs no labels."""
    k: Annotated[int | tuple[int, ...], arg(metavar="INT...")] = (20, 200)
    """kNN: number of neighbors that vote, one or more. retrieval: precision among the first k."""
    temperature: float = 0.07
    """kNN: the vote of a neighbor is exp(similarity / temperature)."""
    features: Annotated[str, arg(metavar="NAME")] = "backbone"
    """Features to evaluate: backbone, or projector (runs only)."""
    last_blocks: Number = None
    """ViTs: evaluate the class tokens of this many last blocks, concatenated (DINOv2: 1 and 4).
    If not given, the output of the network."""
    patch_mean: bool = False
    """ViTs, with --last-blocks: append the mean of the patch tokens of the last block."""
    against: Annotated[Sequence[str], arg(metavar="RUN...", help_behavior_hint="")] = ()
    """Runs or backbones to compare with, such as a supervised one."""
    untrained: bool = True
    """Also evaluate the untrained network."""
    epochs: Number = None
    """Epochs of protocols that train, in place of the published number.
    Warm-up and learning rate steps scale with it."""
    iterations: Number = None
    """Iterations of protocols that count them (detection), scaled in the same way."""
    batch_size: Number = None
    """Images per step over all processes, in place of the published number."""
    share: Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="")] = None
    """few_labels: share of the labels to use, 0.01 for 1 %."""
    per_class: Number = None
    """few_labels: number of labels of each class."""
    split_file: File = None
    """few_labels: text file with the names of the labeled images, one per line."""
    by_class: bool = False
    """Print the accuracy of every class, not only of the worst and the best."""
    split_folder: Suppress[Path | None] = None
    """few_labels: folder that stores the sampled labels. If not given, splits/ of the run."""
    out: Folder = None
    """Folder for the results of --backbone. If not given, runs/NAME."""
    device: Device = "auto"
    """auto, cpu or cuda."""
    seed: int = 0
    """Seed of splits, of sampled labels and of training."""
    settings: Suppress[Sequence[str]] = ()
    """Settings of the protocols as flags: ("--head.lr", "0.3")."""

    @property
    def feature_name(self) -> str:
        """Name of the evaluated features, in settings and names of results."""
        if self.last_blocks is None:
            return self.features
        return f"last{self.last_blocks}" + ("_patch_mean" if self.patch_mean else "")

    def result_name(self, protocol: str) -> str:
        """Name of a protocol's result; features other than the backbone's have their own."""
        return protocol if self.feature_name == "backbone" else f"{protocol}.{self.feature_name}"

    @property
    def neighbor_counts(self) -> tuple[int, ...]:
        """Every k of kNN, also if there is only one."""
        return (self.k,) if isinstance(self.k, int) else tuple(self.k)


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Options of `selfsight doctor`, which are also keywords of `selfsight.doctor`."""

    method: Name = None
    """As for pretrain, to see its recipe and what a step of it needs of memory."""
    recipe: Annotated[Any, arg(metavar="NAME", constructor=str, help_behavior_hint="")] = None
    """As for pretrain. Settings of the recipe have flags too: --activation-checkpointing."""
    batch_size: Number = None
    """As for pretrain."""
    device: Device = "auto"
    """auto, cpu or cuda."""
    sample: int = 512
    """Images to read."""
    settings: Suppress[Sequence[str]] = ()
    """Settings of the recipe as flags: ("--chunk", "64")."""

    def __post_init__(self) -> None:
        check_settings(self, "", RANGES)


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


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """Options of `selfsight study`, which are also keywords of `selfsight.study`.

    >>> options = selfsight.StudyOptions(scale="imagenette", seeds=[0, 1, 2])
    """

    data: Images = None
    """Images: a folder with train/ and test/, or with Parquet files so named.
    If not given, torchvision:CIFAR10, which needs --scale cifar10."""
    scale: Annotated[
        Literal["cifar10", "imagenette", "stl10", "imagenet100", "imagenet"], arg(metavar="NAME")
    ] = "cifar10"
    """Data set of the arms: cifar10, imagenette, stl10, imagenet100 or imagenet."""
    arms: Annotated[Sequence[str], arg(metavar="NAME...", help_behavior_hint="")] = ()
    """Arms to train. If not given, all arms of the scale."""
    seeds: Annotated[Sequence[int], arg(metavar="INT...")] = (0,)
    """Seeds; all arms are trained with the first, then with the next."""
    minutes: Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="")] = None
    """Stop in time: an arm begins only if it is expected to end by then.
    The first always begins, and the same command goes on with it."""
    held_out: bool = False
    """Score on a tenth of the training images, left out of training, to tune settings.
    The test images are not read."""
    quick: bool = False
    """Try every arm with a tiny network, few images and one epoch."""
    ledger: Folder = None
    """Folder of the results. If not given, the one of the package."""
    work: Annotated[str | Path, arg(metavar="FOLDER")] = Path("runs/studies")
    """Folder of the run folders, from which interrupted arms go on."""
    device: Device = "auto"
    """auto, cpu or cuda."""
    again: bool = False
    """Train arms that the ledger has, too."""
    settings: Suppress[Sequence[str]] = ()
    """Settings to change in every arm, as flags: ("--optim.lr", "0.06")."""

    def __post_init__(self) -> None:
        check_settings(self, "", RANGES)


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """Options of `selfsight reproduce`, which are also keywords of `selfsight.reproduce`."""

    data: Images = None
    """Images. If not given, where the run had them; for an arm, as for study."""
    steps: Number = None
    """Runs: repeat only so many steps. If not given, up to the last record of the log."""
    tolerance: float = 1e-3
    """Runs: largest relative difference of a number that still passes."""
    out: Folder = None
    """Runs: folder of the repeated run. If not given, a temporary one that is deleted."""
    trust: bool = False
    """Runs: let its recipe run code from outside selfsight, and read images from a network.
    Only if you trust its author."""
    seed: Number = None
    """Arms: seed of the run. If not given, 0."""
    ledger: Folder = None
    """Arms: folder with results to compare with, beside those of the package."""
    device: Device = "auto"
    """auto, cpu or cuda."""

    def __post_init__(self) -> None:
        check_settings(self, "", RANGES)


# Function defaults: frozen, so that sharing them is safe.
PRETRAIN_DEFAULTS, EVAL_DEFAULTS = PretrainOptions(), EvalOptions()
STUDY_DEFAULTS = StudyOptions()
CONFORMANCE_DEFAULTS, DOCTOR_DEFAULTS = ConformanceOptions(), DoctorOptions()
REPRODUCE_DEFAULTS = ReproduceOptions()
