"""Everything that decides what a run computes, as frozen dataclasses, and its checks."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
import tyro

from selfsight.backbones import BackboneConfig
from selfsight.check_settings import (
    BATCH_SIZE,
    CHANNELS,
    COUNT,
    EPOCHS,
    PIXELS,
    POSITIVE,
    SEED,
    Range,
    build_settings,
    check_settings,
    show_value,
)
from selfsight.data.decoders.scientific_images import Dtype, is_photo
from selfsight.data.eval_transform import EvalTransform, standard_transform
from selfsight.data.pixel_statistics import PixelKind
from selfsight.data.storage_plan import StorageSettings
from selfsight.errors import UserError, suggest
from selfsight.methods import BASELINES, METHODS, MethodConfig
from selfsight.methods.base import validate_method
from selfsight.nn.activation_checkpointing import check_blocks
from selfsight.nn.chunked_encoder import check_chunk_size
from selfsight.optim import Optim
from selfsight.options.parse_flags import list_settings, parse_flags
from selfsight.options.pretrain_options import PRETRAIN_DEFAULTS
from selfsight.outside_code import find_again, import_name, list_outside_code
from selfsight.views import View, for_channels
from selfsight.views.view_settings import check_channels

ALL_METHODS = METHODS | BASELINES
RANGES: dict[str, Range] = {
    "epochs": EPOCHS,
    "batch_size": BATCH_SIZE,
    "chunk": COUNT,
    "seed": SEED,
    "log_every": COUNT,
    "save_every": COUNT,
    "keep_epochs": EPOCHS,
    "save_steps": COUNT,
    "save_minutes": POSITIVE,
    "measure_every": COUNT,
}


@dataclass(frozen=True, kw_only=True)
class Data:
    """Images and how they are loaded."""

    path: str = ""
    """DATA of the command line."""
    classes: tuple[str, ...] = ()
    """Classes to use: imagenet100, a file that lists them, or their names. None: all."""
    labels: bool = False
    """Read labels from sub-folders, for evaluation only."""
    label_column: str | None = None
    """Column of the labels in Parquet. None: the first that is called or described as labels."""
    store_size: int = 256
    """Short side of the decoded images."""
    channels: int = 3
    dtype: Dtype = "uint8"
    """Type of the pixels; uint8 with 1, 3 or 4 channels are photographs."""
    tile: int | None = None
    """Side of square tiles that images are cut into, at their own scale. None: whole images."""
    storage: Literal["auto", "cache", "stream"] = "auto"
    """Decode once and cache the pixels, or decode in every epoch (stream)."""
    decoder: Literal["auto", "cpu", "nvjpeg"] = "auto"
    """Decoder of JPEG files; auto is nvjpeg for streams to a GPU with few CPU cores, else cpu."""

    def __post_init__(self) -> None:
        ranges = {"store_size": PIXELS, "channels": CHANNELS, "tile": PIXELS}
        check_settings(self, "data.", ranges)

    @property
    def stored(self) -> StorageSettings:
        """The settings that decide how the images are stored and decoded."""
        names = [field.name for field in fields(StorageSettings)]
        return StorageSettings(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class Start:
    """The weights that a backbone starts from, saved in the run folder; heads are new."""

    name: tyro.conf.Suppress[str] = ""
    """Encoder of --init; empty: random weights."""
    license: tyro.conf.Suppress[str | None] = None
    """License of the weights, if it is known."""
    checksum: tyro.conf.Suppress[str] = ""
    """SHA-256 of the file of the weights in the run folder."""
    lr_factor: float = 1.0
    """Learning rate of the backbone, relative to that of the heads."""
    freeze: int = 0
    """Number of frozen stages of a ResNet, or blocks of a ViT, counted from the stem."""

    def __post_init__(self) -> None:
        ranges = {"lr_factor": Range(0, 1000, low_allowed=False), "freeze": Range(0, 1000)}
        check_settings(self, "start.", ranges)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides what a run computes; `replace` of dataclasses changes settings.

    >>> recipe = dataclasses.replace(selfsight.build_recipe("simclr.shapes"), batch_size=8)
    >>> another = selfsight.pretrain("photos", recipe=recipe, epochs=1, device="cpu",
    ...     **{"optim.schedule.warmup_epochs": 0.0})
    """

    method: MethodConfig
    views: tuple[View, ...]
    optim: Optim
    backbone: BackboneConfig
    data: Data = Data()
    start: Start = Start()
    epochs: int = 100
    batch_size: int = 256
    """Images per optimizer step over all processes."""
    chunk: int | None = None
    """Images that a process encodes at a time; None for all. The gradient is the same."""
    activation_checkpointing: bool = False
    """Store the inputs of the backbone's blocks alone, and compute the blocks again in the backward
    pass. The gradient is the same."""
    seed: int = 0
    precision: Literal["bf16", "fp16", "float32"] = "float32"
    """Precision of the networks; losses are at least float32."""
    compile: bool = True
    """Compile on a GPU; slower only in short runs."""
    compile_blocks: bool = False
    """Compile the backbone's blocks one by one, equal ones once: faster start, slower steps."""
    repeatable: bool = False
    """Bitwise reproducible on a GPU too, somewhat slower; a CPU always is."""
    log_every: int = 10
    """Steps between log records."""
    log_gradients: bool = False
    """Log the norm of each layer's gradient, to see where an instability begins."""
    save_every: int = 1
    """Epochs between checkpoints."""
    keep_epochs: tuple[int, ...] = ()
    """Epochs whose checkpoint is kept, as checkpoints/epoch_N.pt."""
    save_steps: int | None = None
    """Also save a checkpoint after this many steps."""
    save_minutes: float | None = None
    """Also save a checkpoint if the last one is this many minutes old."""
    measure_every: int = 10
    """Epochs between measurements of online_knn, if there are labels."""

    def __post_init__(self) -> None:
        check_settings(self, "", RANGES)
        self.optim.schedule.check(self.epochs)
        for epoch in self.keep_epochs:
            if epoch > self.epochs:
                raise UserError(
                    f"keep_epochs has {epoch}, but the epochs of this run are 1 to {self.epochs}. "
                    "Leave it out, or raise epochs."
                )
        sizes = tuple(view.size for view in self.views)
        validate_method(self.method, batch_size=self.batch_size, view_sizes=sizes)
        for view in self.views:
            self.backbone.check_view_size(view.size)
        if self.backbone.in_channels != self.data.channels:
            raise UserError(
                f"backbone.in_channels is {self.backbone.in_channels} and data.channels is "
                f"{self.data.channels}, but the network gets the images as they are. "
                "Set both to the same number."
            )
        for view in self.views:
            check_channels(view, self.data.channels)
        if not self.start.name and self.start != Start():
            raise UserError(
                "start.lr_factor and start.freeze are for weights that a run starts from, and it "
                "starts from random ones. Name an encoder with --init, or leave them out."
            )
        if self.chunk is None and not self.activation_checkpointing and not self.compile_blocks:
            return
        with torch.device("meta"):  # norms and blocks are known once the network is built
            backbone = self.method.build(self.backbone.build()).student.backbone
        if self.chunk is not None:
            check_chunk_size(self.chunk, backbone)
            if self.activation_checkpointing:
                raise UserError(
                    f"activation_checkpointing is set, but chunks of {self.chunk} images are "
                    "recomputed already. Leave one of the two out."
                )
        for setting in ("activation_checkpointing", "compile_blocks"):
            if getattr(self, setting):
                check_blocks(backbone, setting)


@dataclass(frozen=True, kw_only=True)
class _Unchecked(Recipe):
    """Settings that are not validated yet: a flag may be valid only together with another."""

    def __post_init__(self) -> None:
        pass


def override(
    recipe: Recipe,
    given: Mapping[str, Any],
    flags: Sequence[str] = (),
    *,
    command: str = "pretrain DATA",
) -> Recipe:
    """Replace settings of a recipe: by values that are not None, and by flags of a command.

    Views are adjusted to the method: `--method.num-views 8` repeats the last one.
    """
    known = {k: v for k, v in given.items() if v is not None}
    if not flags:
        return dataclasses.replace(recipe, **known)
    settings = vars(recipe) | known
    parse = functools.partial(
        parse_flags,
        _Unchecked,
        prog=f"selfsight {command}",
        args=list(flags),
        known=[flag for flag, _ in list_settings(PRETRAIN_DEFAULTS)],
        config=(tyro.conf.AvoidSubcommands,),
    )
    parsed, unknown = parse(default=_Unchecked(**settings), return_unknown_args=True)
    parsed.method.validate()
    views = parsed.method.match_views(recipe.views)
    if unknown or views != recipe.views:  # flags of views that were not there yet
        parsed = parse(default=_Unchecked(**settings | {"views": views}))
    return Recipe(**vars(parsed))


def eval_transform(recipe: Recipe, image_size: int | None = None) -> EvalTransform:
    """Build the evaluation transform from the first training view, or for another size."""
    first = recipe.views[0]
    return standard_transform(
        image_size or first.size,
        mean=first.mean,
        std=first.std,
        channels=recipe.data.channels,
        dtype=recipe.data.dtype,
        low=first.low,
        high=first.high,
    )


def fit_to_images(recipe: Recipe, kind: PixelKind) -> Recipe:
    """Adapt a recipe to images that are not photographs: channels, statistics, no color operations.

    Crops and rotations of the recipe do not change.
    """
    statistics = {name: getattr(kind, name) for name in ("low", "high", "mean", "std")}
    views = tuple(
        dataclasses.replace(for_channels(view, kind.channels, is_color=kind.is_color), **statistics)
        for view in recipe.views
    )
    return dataclasses.replace(
        recipe,
        views=views,
        backbone=dataclasses.replace(recipe.backbone, in_channels=kind.channels),
        data=dataclasses.replace(recipe.data, channels=kind.channels, dtype=kind.dtype),
    )


def has_photos(recipe: Recipe) -> bool:
    """Whether a recipe is for photographs: 8-bit gray or color, in views of bytes."""
    return is_photo(recipe.data.channels, recipe.data.dtype)


def method_name(config: MethodConfig) -> str:
    """Name of a method: its key in METHODS, or `package.module:Name` from another package."""
    cls = type(config)
    names = [name for name, known in ALL_METHODS.items() if known is cls]
    return names[0] if names else f"{cls.__module__}:{cls.__qualname__}"


def method_config(name: str) -> type[MethodConfig]:
    """Config class of a method: a key of METHODS or BASELINES, or `package.module:Name`."""
    if name in ALL_METHODS:
        return ALL_METHODS[name]
    if ":" not in name:
        raise UserError(
            f'There is no method "{name}".{suggest(name, ALL_METHODS)} '
            f"Known: {', '.join(sorted(ALL_METHODS))}."
        )
    config_class = import_name(name, "method")
    if not (isinstance(config_class, type) and issubclass(config_class, MethodConfig)):
        raise UserError(f'"{name}" is not a subclass of selfsight.methods.MethodConfig.')
    return config_class


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Convert to plain values for JSON."""
    return dataclasses.asdict(recipe) | {
        "method": {"name": method_name(recipe.method), **dataclasses.asdict(recipe.method)}
    }


def list_differences(a: Any, b: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    """List what differs between two values of `to_dict`: name, one value, the other."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return [
            difference
            for key in {**a, **b}
            for difference in list_differences(a.get(key), b.get(key), f"{name}.{key}".lstrip("."))
        ]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        pairs = enumerate(zip(a, b, strict=True))
        return [d for i, (x, y) in pairs for d in list_differences(x, y, f"{name}.{i}")]
    return [] if a == b else [(name, a, b)]


def list_changed(settings: Any, name: str = "") -> list[str]:
    """Names of the settings that differ from the defaults of their classes, or have none."""
    if isinstance(settings, tuple) and settings and dataclasses.is_dataclass(settings[0]):
        parts = enumerate(settings)
        return [found for i, part in parts for found in list_changed(part, f"{name}.{i}")]
    changed = []
    for field in dataclasses.fields(settings):
        value, path = getattr(settings, field.name), f"{name}.{field.name}".lstrip(".")
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default == value and type(default) is type(value):
            continue
        is_group = dataclasses.is_dataclass(value) or path == "views"
        changed += list_changed(value, path) if is_group else [path]
    return changed


def from_dict(saved: dict[str, Any], *, trust: bool = False, complete: bool = False) -> Recipe:
    """Read the recipe that `to_dict` wrote; other keys of a run folder are ignored.

    A missing setting gets its default, or with `complete` is an error.
    Code from outside selfsight is imported only with `trust`: a recipe.json may be untrusted.
    """
    outside = list_outside_code(saved)
    if outside and not trust:
        raise UserError(
            f'This recipe uses "{outside[0]}" from outside selfsight, and loading it runs that '
            "code. If you trust the author of the recipe, add --trust (in Python: trust=True)."
        )
    if trust:
        find_again({k: v for k, v in saved.get("outside_code", {}).items() if k in outside})
    method = saved.get("method")
    name = method.get("name") if isinstance(method, dict) else None
    if not isinstance(method, dict) or not isinstance(name, str):
        raise UserError(f"method.name is {show_value(name)}; it must be the name of a method.")
    settings = {k: v for k, v in method.items() if k != "name"}
    known = {f.name for f in dataclasses.fields(Recipe)}
    rest = {k: v for k, v in saved.items() if k in known and k != "method"}
    converted = build_settings(method_config(name), settings, "method.", complete=complete)
    return build_settings(Recipe, rest | {"method": converted}, "", complete=complete)
