"""Options of the commands that use an encoder: export, embed and search."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

from selfsight.options import Device, EncoderOptions, File, Folder, Name

ExportTarget = Literal["safetensors", "torchvision", "timm", "hf", "onnx", "detectron2"]


@dataclass(frozen=True, kw_only=True)
class ExportOptions(EncoderOptions):
    """Options of `selfsight export`, which are also keywords of `selfsight.export`."""

    to: Annotated[ExportTarget | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """What the encoder is written for: safetensors, torchvision, timm, hf (transformers), onnx or
    detectron2."""
    with_transform: bool = False
    """onnx: put resize, crop and normalization into the graph, which then takes images as they
    are: uint8 [N, H, W, C]."""
    license: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """License of the weights for the model card, such as apache-2.0.
    If not given, that which timm states for its own weights, else none."""
    out: Folder = None
    """Folder to write. If not given, RUN/export/TARGET, or exports/NAME-TARGET for --backbone."""
    overwrite: bool = False
    """Replace an earlier export in the folder."""


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(EncoderOptions):
    """Options of `selfsight embed`, which are also keywords of `selfsight.embed`."""

    out: Folder = None
    """Folder to write. If not given, RUN/embeddings/DATA, or embeddings/NAME-DATA for --backbone.
    The same command goes on where an earlier one stopped."""
    format: Annotated[Literal["parquet", "npy"], arg(metavar="NAME")] = "parquet"
    """parquet: shards with the columns path, label and vector; npy: shards of vectors, each with
    a JSON file of paths and labels."""
    shard_size: int = 8192
    """Images of a shard. What a stopped job loses is at most one shard."""
    precision: Annotated[Literal["fp32", "bf16"], arg(metavar="NAME")] = "fp32"
    """fp32, in which encoders are evaluated, or bf16, which is faster on a GPU."""
    split: Name = None
    """Split of the data, such as train or test. If not given, train if there are splits."""
    labels: bool = False
    """Read labels from sub-folders; those of lists, tar shards and Parquet are always read."""
    label_column: Name = None
    """Column of the labels in Parquet. If not given, the first that is called so."""
    device: Device = "auto"
    """auto, cpu or cuda."""
    overwrite: bool = False
    """Replace other vectors in the folder."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions(EncoderOptions):
    """Options of `selfsight search`, which are also keywords of `selfsight.search`."""

    count: int = 10
    """Images to list for each query, and outliers."""
    duplicates: bool = False
    """Group the near-duplicates of the data."""
    similarity: Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="")] = None
    """Cosine similarity from which two images are near-duplicates. If not given, the one that nine
    of ten slightly cut copies of the images have to their originals."""
    outliers: bool = False
    """List the images that are unlike all others, by the distance to their ten nearest."""
    keep: File = None
    """Write a list of the images, for pretrain: one of each group of --duplicates, and without
    what --outliers lists."""
    index: Annotated[Literal["exact", "faiss"], arg(metavar="NAME")] = "exact"
    """exact, or faiss (a package of its own), which is faster past a million images and may miss
    some."""
    vectors: Folder = None
    """Folder of vectors, which are written if they are missing. If not given, that of embed."""
    split: Name = None
    """Split of the data, such as train or test. If not given, train if there are splits."""
    device: Device = "auto"
    """auto, cpu or cuda."""


EXPORT_DEFAULTS, EMBED_DEFAULTS = ExportOptions(), EmbedOptions()
SEARCH_DEFAULTS = SearchOptions()
