"""Options of `evaluate`, and those that choose an encoder, which other commands have too.

The text under each field is its help. Nothing here imports torch, so that help is fast.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Suppress, arg

from selfsight.check_settings import check_settings
from selfsight.options.option_types_and_ranges import (
    RANGES,
    ClassNames,
    Device,
    File,
    Folder,
    Images,
    Name,
    Number,
)


@dataclass(frozen=True, kw_only=True)
class EncoderOptions:
    """Which encoder, and the transform of its images: options of evaluate, export and embed."""

    backbone: Name = None
    """Any encoder in place of a run: timm:NAME, torchvision:NAME, FILE or NETWORK=FILE.
    A file holds weights, such as a published checkpoint."""
    image_size: Number = None
    """Side of the input in pixels. If not given, the size used in training."""
    preprocess: Annotated[str, arg(metavar="NAME")] = "standard"
    """Transform of the images: standard is the same for all encoders; native is what timm or
    torchvision states for its network. Both use the network's own mean and std."""
    part: Annotated[str | None, arg(metavar="PREFIX", help_behavior_hint="")] = None
    """Prefix of the weights to load, from a file that holds several encoders."""
    stem: Name = None
    """Stem of a ResNet in a file of weights, if its first convolution is 3 x 3: lowres (stride 1),
    half (stride 2) or lowres_pad2 (padding 2). If not given, as in the project that wrote it."""
    trust: bool = False
    """Allow files of weights, and recipes of run folders, to run code and reach a network.
    Use it only if you trust their author."""

    def __post_init__(self) -> None:
        check_settings(self, "", RANGES)


@dataclass(frozen=True, kw_only=True)
class EvalOptions(EncoderOptions):
    """Options of `selfsight evaluate`, which are also keywords of `selfsight.evaluate`.

    A protocol ignores options that it does not use; an option that no protocol uses is an error.

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
    If not given, the classes of the run if the labeled images have all of them, else all."""
    protocols: Annotated[
        Sequence[str], arg(name="protocol", metavar="NAME...", help_behavior_hint="")
    ] = ()
    """Protocols to run; --protocols lists their names.
    If not given: knn and linear, or without --labeled the measures that need no labels."""
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
    """few_labels: number of labels per class."""
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
        """Every k of kNN, as a tuple."""
        return (self.k,) if isinstance(self.k, int) else tuple(self.k)


# Function defaults: frozen, so that sharing them is safe.
EVAL_DEFAULTS = EvalOptions()
