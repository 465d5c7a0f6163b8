"""Options of the commands that use an encoder: export, embed, search, explore, classify, adapt."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Suppress, arg

from selfsight.check_settings import POSITIVE, check_settings
from selfsight.options.eval_options import EncoderOptions
from selfsight.options.option_types_and_ranges import (
    RANGES,
    Device,
    File,
    Folder,
    Images,
    Name,
    Number,
)

ExportTarget = Literal["safetensors", "torchvision", "timm", "hf", "onnx", "detectron2"]


@dataclass(frozen=True, kw_only=True)
class ExportOptions(EncoderOptions):
    """Options of `selfsight export`, which are also keywords of `selfsight.export`.

    >>> options = selfsight.ExportOptions(to="timm", license="apache-2.0")
    """

    to: Annotated[ExportTarget | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """Target: safetensors, torchvision, timm, hf (transformers), onnx or detectron2."""
    with_transform: bool = False
    """onnx: put resize, crop and normalization into the graph, which then takes images of any
    size as uint8 [N, H, W, C]."""
    classifier: Annotated[str | Path | None, arg(metavar="NAME|FILE", help_behavior_hint="")] = None
    """Export the network with the head of a classifier that `selfsight classify` has saved, and the
    names of its classes. If not given, only the encoder."""
    license: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """License of the weights for the model card, such as apache-2.0.
    If not given, the license that timm states for its weights, else none."""
    out: Folder = None
    """Folder to write. If not given, RUN/export/TARGET, or exports/NAME-TARGET for --backbone."""
    overwrite: bool = False
    """Replace an earlier export in the folder."""


@dataclass(frozen=True, kw_only=True)
class ImageOptions(EncoderOptions):
    """Which images an encoder embeds, and where: options of embed, search and explore."""

    split: Name = None
    """Split of the data, such as train or test. If not given, train if there are splits."""
    device: Device = "auto"
    """auto, cpu or cuda."""


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(ImageOptions):
    """Options of `selfsight embed`, which are also keywords of `selfsight.embed`.

    >>> options = selfsight.EmbedOptions(format="npy", shard_size=1024)
    """

    out: Folder = None
    """Folder to write. If not given, RUN/embeddings/DATA, or embeddings/NAME-DATA for --backbone.
    Repeat the command to continue one that was stopped."""
    format: Annotated[Literal["parquet", "npy"], arg(metavar="NAME")] = "parquet"
    """parquet: shards with the columns path, label and vector; npy: shards of vectors, each with
    a JSON file of paths and labels."""
    shard_size: int = 8192
    """Images per shard. A stopped job loses at most one shard."""
    precision: Annotated[Literal["fp32", "bf16"], arg(metavar="NAME")] = "fp32"
    """fp32, as in evaluation, or bf16, which is faster on a GPU."""
    labels: bool = False
    """Read labels from sub-folders. Labels of lists, tar shards and Parquet are always read."""
    label_column: Name = None
    """Column of the labels in Parquet. If not given, the first that is named so."""
    overwrite: bool = False
    """Replace other vectors in the folder."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions(ImageOptions):
    """Options of `selfsight search`, which are also keywords of `selfsight.search`.

    >>> options = selfsight.SearchOptions(count=5)
    """

    count: int = 10
    """Number of images to list for each query, and of outliers."""
    duplicates: bool = False
    """Group the near-duplicates of the data."""
    similarity: Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="")] = None
    """Least cosine similarity of near-duplicates. If not given, the similarity that nine of ten
    slightly cropped copies of the images have to their originals."""
    outliers: bool = False
    """List the images that are unlike all others, by the distance to their ten nearest images."""
    keep: File = None
    """Write a list of images for pretrain: one image of each group of --duplicates, and none of the
    --outliers."""
    index: Annotated[Literal["exact", "faiss"], arg(metavar="NAME")] = "exact"
    """exact, or faiss (a separate package), which is faster above a million images but may miss
    some."""
    vectors: Folder = None
    """Folder of vectors; missing ones are written. If not given, the default folder of embed."""


@dataclass(frozen=True, kw_only=True)
class ExploreOptions(ImageOptions):
    """Options of `selfsight explore`, which are also keywords of `selfsight.explore`.

    >>> options = selfsight.ExploreOptions(clusters=20)
    """

    out: File = None
    """Page to write, a name that ends with .html. If not given, RUN/explore/DATA.html, or
    explore/NAME-DATA.html for --backbone."""
    clusters: int = 12
    """Number of k-means clusters for coloring the map."""
    max_mb: int = 64
    """Largest size of the page in million bytes: more images get smaller thumbnails."""
    labels: bool = False
    """Read labels from sub-folders, for coloring. Labels of lists, tar shards and Parquet are
    always read."""
    label_column: Name = None
    """Column of the labels in Parquet. If not given, the first that is named so."""
    vectors: Folder = None
    """Folder of vectors; missing ones are written. If not given, the default folder of embed."""


@dataclass(frozen=True, kw_only=True)
class ClassifyOptions(EncoderOptions):
    """Options of `selfsight classify`, which are also keywords of `selfsight.classify`.

    >>> options = selfsight.ClassifyOptions(labeled="photos", predict="new", top_k=2)
    """

    labeled: Images = None
    """Labeled images to train a classifier on: a folder with a sub-folder per class, Parquet, tar
    shards or a built-in set. Its train/ and val/ or test/ are used if present."""
    test: Images = None
    """Labeled images to measure it on. If not given, the test split of --labeled, or else
    cross-validation in 5 folds."""
    label_column: Name = None
    """Column of the labels in Parquet. If not given, the first that is named or described as
    labels."""
    classifier: Annotated[str | Path | None, arg(metavar="NAME|FILE", help_behavior_hint="")] = None
    """The classifier to save (with --labeled) or to predict with: RUN/classifiers/NAME.safetensors
    or any file. If not given, named after the labeled images, or the only one of the run."""
    fine_tune: bool = False
    """Train the network too, not only a linear head on its features. A fifth of the labeled images
    is held out to measure it, unless there are test images."""
    epochs: Number = None
    """--fine-tune: passes over the labeled images. If not given, 30."""
    batch_size: Number = None
    """--fine-tune: images per step. If not given, 64."""
    predict: Images = None
    """Images to predict, as for pretrain."""
    split: Name = None
    """Split of the images to predict, such as test. If not given, train if there are splits."""
    out: File = None
    """CSV file for the predictions: path, label, confidence and error (why an image could not be
    read). If not given, RUN/predictions/DATA.csv, or predictions/NAME-DATA.csv."""
    top_k: int = 1
    """Number of classes to write for each image, as label_2, confidence_2 and so on."""
    by_class: bool = False
    """Print the accuracy of every class, not only of the worst and the best."""
    seed: int = 0
    """Seed of folds, of held-out images and of training."""
    device: Device = "auto"
    """auto, cpu or cuda."""
    overwrite: bool = False
    """Replace an earlier classifier of the same name, or earlier predictions."""


@dataclass(frozen=True, kw_only=True)
class AdaptOptions:
    """Options of `selfsight adapt`, which are also keywords of `selfsight.adapt`.

    >>> options = selfsight.AdaptOptions(minutes=10.0)
    """

    init: Name = None
    """The encoder to start from: timm:NAME, a run folder, FILE or NETWORK=FILE, as for pretrain."""
    minutes: float = 30.0
    """Time limit for everything. An arm that does not fit is not tried."""
    labeled: Images = None
    """Some labeled images to decide by, as for evaluate. Each is held out once; a test split is
    used if there is one. If not given, measures without labels decide, which is weak evidence."""
    label_column: Name = None
    """Column of the labels in Parquet. If not given, the first that is named so."""
    method: Name = None
    """A method of `selfsight methods`. If not given, chosen from the data."""
    epochs: Number = None
    """Maximum number of epochs of an arm. If not given, as many as pretrain would choose."""
    batch_size: Number = None
    """Images per step. If not given, chosen from the data."""
    seed: int = 0
    """Seed of training and of the folds."""
    device: Device = "auto"
    """auto, cpu or cuda."""
    out: Folder = None
    """Folder for the result, the runs and the encoder. If not given, runs/DATA-adapt.
    Repeat the command to continue one that was stopped."""
    overwrite: bool = False
    """Start again in the folder of an earlier call."""
    part: Annotated[str | None, arg(metavar="PREFIX", help_behavior_hint="")] = None
    """--init: prefix of the weights to load, from a file that holds several encoders."""
    stem: Name = None
    """--init: stem of a ResNet in a file, as for evaluate --stem."""
    trust: bool = False
    """--init: allow a file of weights, or the recipe of a run, to run code when it is read."""
    settings: Suppress[Sequence[str]] = ()
    """Settings of the recipe of both trained arms as flags: ("--optim.lr", "0.001")."""

    def __post_init__(self) -> None:
        check_settings(self, "", RANGES | {"minutes": POSITIVE})


EXPORT_DEFAULTS, EMBED_DEFAULTS = ExportOptions(), EmbedOptions()
SEARCH_DEFAULTS, EXPLORE_DEFAULTS = SearchOptions(), ExploreOptions()
CLASSIFY_DEFAULTS = ClassifyOptions()
ADAPT_DEFAULTS = AdaptOptions()
