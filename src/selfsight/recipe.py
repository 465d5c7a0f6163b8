"""Everything that decides what a run computes, as frozen dataclasses, and its checks."""

import dataclasses
import importlib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import tyro

from selfsight.backbones import BackboneConfig
from selfsight.errors import UserError, suggest
from selfsight.methods import BASELINES, METHODS, MethodConfig
from selfsight.methods.base import check
from selfsight.nn.chunked_encoder import refuse_chunk
from selfsight.optim import Optim
from selfsight.views import EvalView, View, for_channels

NAMED = METHODS | BASELINES


@dataclass(frozen=True, kw_only=True)
class Data:
    """Which images, and how they are kept."""

    path: str = ""
    """The word DATA of the command line."""
    classes: str | None = None
    """A file that lists the classes to keep."""
    labels: bool = False
    """Read labels from sub-folders; used for measuring only."""
    store_size: int = 256
    """Short side of the decoded images."""
    channels: int = 3
    storage: Literal["auto", "cache", "stream"] = "auto"
    """Cache the decoded pixels, or stream: decode anew in every epoch."""
    decoder: Literal["auto", "cpu", "nvjpeg"] = "auto"
    """What decodes JPEG files; auto is settled by measurement when the run begins."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides what a run computes."""

    method: MethodConfig
    views: tuple[View, ...]
    optim: Optim
    backbone: BackboneConfig
    data: Data = Data()
    epochs: int = 100
    batch_size: int = 256
    """Images per optimizer step over all processes."""
    chunk: int | None = None
    """Images that a process encodes at a time; None: all. The gradient is the same."""
    seed: int = 0
    precision: Literal["bf16", "fp16", "float32"] = "float32"
    """Of the networks; losses are at least float32."""
    compile: bool = True
    """On a GPU; it pays in all but short runs."""
    repeatable: bool = False
    """The same bits in every run on a GPU too, at some cost in speed; a CPU always gives them."""
    log_every: int = 10
    """Steps between records."""
    save_every: int = 1
    """Epochs between checkpoints."""
    measure_every: int = 10
    """Epochs between kNN measurements, where there are labels."""

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise UserError(f"epochs is {self.epochs}; a run needs 1 or more.")
        self.optim.check(epochs=self.epochs)
        if min(self.log_every, self.save_every, self.measure_every) < 1:
            raise UserError("log_every, save_every and measure_every must be 1 or more.")
        sizes = tuple(view.size for view in self.views)
        check(self.method, batch_size=self.batch_size, view_sizes=sizes)
        for view in self.views:
            self.backbone.refuse(view.size)
        if self.chunk is not None:
            with torch.device("meta"):  # norms are known once the network is built
                method = self.method.build(self.backbone.build())
            refuse_chunk(self.chunk, method.student.backbone)


def override(
    recipe: Recipe,
    given: Mapping[str, Any],
    flags: Sequence[str] = (),
    *,
    command: str = "pretrain DATA",
) -> Recipe:
    """The recipe with the numbers that are not None and with flags as given to a command."""
    known = {k: v for k, v in given.items() if v is not None}
    if not flags:
        return dataclasses.replace(recipe, **known)
    # All at once: fewer epochs may need a shorter warm-up, which is a flag.
    words = [word for k, v in known.items() for word in (f"--{k.replace('_', '-')}", str(v))]
    return tyro.cli(
        Recipe,
        prog=f"selfsight {command}",
        default=recipe,
        args=[*words, *flags],
        config=(tyro.conf.AvoidSubcommands,),
    )


def eval_view(recipe: Recipe, image_size: int | None = None) -> EvalView:
    """Build the evaluation transform from the first training view, or for another size."""
    first = recipe.views[0]
    size = image_size or first.size
    view = EvalView(size=size, resize=resize_for(size), mean=first.mean, std=first.std)
    return for_channels(view, recipe.data.channels)


def resize_for(size: int) -> int:
    """Short side to resize to before the center crop: 8/7 of a large crop, as is usual."""
    return size if size < 96 else size * 8 // 7


def method_name(config: MethodConfig) -> str:
    """The name of a method's settings: its key, or `package.module:Name` for an outsider's."""
    kind = type(config)
    known = [name for name, known in NAMED.items() if known is kind]
    return known[0] if known else f"{kind.__module__}:{kind.__qualname__}"


def method_config(name: str) -> type[MethodConfig]:
    """The settings class called `name`: a key of METHODS or BASELINES, or an outsider's name."""
    if name in NAMED:
        return NAMED[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise UserError(
            f'There is no method "{name}".{suggest(name, NAMED)} Known: {", ".join(sorted(NAMED))}.'
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f'Cannot import the method "{name}": {error}.') from error
    if not (isinstance(found, type) and issubclass(found, MethodConfig)):
        raise UserError(f'"{name}" is not a subclass of selfsight.methods.MethodConfig.')
    return found


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Plain values that JSON can hold."""
    return dataclasses.asdict(recipe) | {
        "method": {"name": method_name(recipe.method), **dataclasses.asdict(recipe.method)}
    }


def from_dict(saved: dict[str, Any], *, allow: str | None = None) -> Recipe:
    """The recipe that `to_dict` wrote; keys that a run folder adds beside it are left out.

    A method from outside is imported only if `allow` repeats its name.
    """
    name = saved["method"]["name"]
    if name not in NAMED and ":" in name and name != allow:
        raise UserError(
            f'This recipe uses the method "{name}" from outside selfsight. Loading it runs that '
            f"code. If you trust it, repeat its name: --method {name}"
        )
    method = {k: v for k, v in saved["method"].items() if k != "name"}
    fields = {f.name for f in dataclasses.fields(Recipe)}
    rest = {k: v for k, v in saved.items() if k in fields and k != "method"}
    return _build(Recipe, rest | {"method": _build(method_config(name), method)})


def _build(kind: Any, value: Any) -> Any:
    """A value of JSON made into the type that a field asks for."""
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = typing.get_type_hints(kind)
        unknown = sorted(set(value) - set(hints))
        if unknown:
            offer = suggest(unknown[0], hints)
            raise UserError(f'{kind} has no setting "{unknown[0]}".{offer}')
        return kind(**{k: _build(hints[k], v) for k, v in value.items()})  # type: ignore[operator]
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and isinstance(value, list | tuple):
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
        return tuple(_build(k, v) for k, v in zip(kinds, value, strict=True))
    if origin in (typing.Union, types.UnionType) and value is not None:
        return _build(next(k for k in args if k is not type(None)), value)
    return value
