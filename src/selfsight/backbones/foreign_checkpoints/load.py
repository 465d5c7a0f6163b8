"""Any encoder: of timm, of torchvision, of a run folder, or a file that another project wrote.

Every name of a file is accounted for: matched, renamed, left with the reason, or missing. A load
that would leave a part of the backbone as it was drawn is refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from selfsight.backbones import BACKBONES, BackboneConfig
from selfsight.backbones.foreign_checkpoints import names
from selfsight.backbones.foreign_checkpoints.infer import network_for, settled_positions
from selfsight.backbones.foreign_checkpoints.names import Place
from selfsight.backbones.foreign_checkpoints.read import checkpoint_of, read
from selfsight.errors import UserError, suggest
from selfsight.nn import Backbone
from selfsight.nn.batch_norm import convert, without_batch
from selfsight.run_folder import Run, read_json
from selfsight.views.spec import MEAN, STD

SHOWN = 8  # names in a sentence; the report has all


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """Where each weight came from, and what the network expects of its images."""

    word: str  # what was asked for
    network: str
    writer: str = ""  # whose names these are, where they tell
    matched: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()  # name in the file, name in the network
    left: tuple[tuple[str, str], ...] = ()  # name in the file, why
    missing: tuple[tuple[str, str], ...] = ()  # name in the network, why that does no harm
    notes: tuple[str, ...] = ()
    image_size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def table(self) -> list[dict[str, str]]:
        """One row for every name of the file and of the network."""

        def row(what: str, file: str, network: str, why: str = "") -> dict[str, str]:
            return {"what": what, "file": file, "network": network, "why": why}

        return [
            *(row("matched", name, name) for name in self.matched),
            *(row("renamed", theirs, ours) for theirs, ours in self.renamed),
            *(row("left", name, "", why) for name, why in self.left),
            *(row("missing", "", name, why) for name, why in self.missing),
        ]

    def sentence(self) -> str:
        """What became of the file, in one breath."""
        said = f"{self.network} from {self.word}"
        if self.writer:
            said += f" (looks like {self.writer})"
        counts = [f"{len(self.matched)} weights matched", f"{len(self.renamed)} renamed"]
        reasons = [why for _, why in self.left]
        kinds = ", ".join(f"{why} {reasons.count(why)}" for why in dict.fromkeys(reasons))
        counts.append(f"{len(self.left)} left" + (f" ({kinds})" if kinds else ""))
        if self.missing:
            counts.append(f"{len(self.missing)} missing that do no harm")
        return f"{said}: {', '.join(counts)}." + "".join(f" {note}" for note in self.notes)


def open_backbone(
    word: str,
    *,
    image_size: int | None = None,
    device: torch.device | str = "cpu",
    trust: bool = False,
    part: str | None = None,
) -> tuple[Backbone, ImportReport]:
    """An encoder in evaluation mode, and what became of every weight.

    `word` is "timm:NAME", "torchvision:NAME", a run folder, a file, or "NETWORK=FILE", which puts
    a file's weights into a network that is named ("resnet50", "timm:NAME", "torchvision:NAME").
    `trust` lets a file run code while it is read; `part` chooses the encoder of a file that has
    several, by the names before its own.
    """
    path = Path(word).expanduser()
    name, equals, file = word.partition("=")
    if path.is_dir():
        backbone, report = _from_run(word, Run(path), None, trust=trust)
    elif path.is_file():
        table, run = read(path, trust=trust), Run(path.parent.parent)
        if run.recipe_path.exists() and path.parent == run.checkpoints:
            backbone, report = _from_run(word, run, table, trust=trust)
        else:
            backbone, report = _from_file(word, table, image_size, part)
    elif equals:
        table = read(Path(file).expanduser(), trust=trust)
        made = _named(name, image_size)
        size = getattr(made, "image_size", None)
        backbone, report = _into(word, made, table, part, network=name, image_size=size)
    elif word.startswith("timm:"):
        backbone, report = _from_timm(word, image_size)
    elif word.startswith("torchvision:"):
        backbone, report = _from_torchvision(word, image_size)
    else:
        raise UserError(_unknown(word))
    report = report if image_size is None else replace(report, image_size=image_size)
    return backbone.to(device).eval(), report


def _from_timm(word: str, image_size: int | None) -> tuple[Backbone, ImportReport]:
    from selfsight.backbones.from_timm import Timm, expected

    name = word.removeprefix("timm:")
    backbone = Timm(name, image_size=image_size)
    backbone.fetch()
    report = ImportReport(
        word=word,
        network=name,
        writer="timm",
        matched=tuple(backbone.net.state_dict()),
        **expected(backbone),
    )
    return backbone, report


def _from_torchvision(word: str, image_size: int | None) -> tuple[Backbone, ImportReport]:
    from selfsight.backbones.from_torchvision import expected, published

    name = word.removeprefix("torchvision:")
    table = published(name)
    about = {"writer": "torchvision", **expected(name)}
    if names.places(table):
        return _from_file(word, table, image_size, None, about)
    backbone = _named(word, image_size)
    return _into(word, backbone, table, None, network=name, **about)


def _from_run(
    word: str, run: Run, table: names.Table | None, *, trust: bool
) -> tuple[Backbone, ImportReport]:
    """The student's backbone of a run's last checkpoint, or of the one that is given."""
    recipe = read_json(run.recipe_path)
    if recipe is None:
        raise UserError(
            f"{run.path} is a folder without a recipe.json, so it is no run. Give the folder that "
            "`selfsight pretrain` wrote, or the file that holds the weights."
        )
    config = BackboneConfig(**recipe["backbone"])
    if ":" in config.name and not config.name.startswith("timm:") and not trust:
        raise UserError(
            f'{run.path} uses the network "{config.name}" from outside selfsight, and loading it '
            "runs that code. If you trust it, add --trust (in Python: trust=True)."
        )
    backbone = convert(config.build(), None)
    if recipe["method"].get("norm", "bn") != "bn":
        backbone = without_batch(backbone, recipe["method"]["norm"])
    assert isinstance(backbone, Backbone)
    view = recipe["views"][0]
    return _into(
        word,
        backbone,
        checkpoint_of(run) if table is None else table,
        "method.student.backbone.",
        network=config.name,
        writer=names.OURS,
        image_size=view["size"],
        mean=tuple(view["mean"]),
        std=tuple(view["std"]),
    )


def _from_file(
    word: str,
    table: names.Table,
    image_size: int | None,
    part: str | None,
    about: Mapping[str, Any] = {},
) -> tuple[Backbone, ImportReport]:
    """A file whose names and shapes say what network they belong to."""
    found = names.places(table)
    if not found:
        shown = ", ".join(list(table)[:SHOWN])
        raise UserError(
            f"{word} holds no ResNet and no ViT that can be told by its names ({len(table)} names: "
            f"{shown}, ...). If you know the network, name it: timm:NAME={word}"
        )
    place = _chosen(word, table, found, part)
    named = _translated(table, place)
    backbone, facts, notes = network_for(word, {n: table[k] for n, k in named.items()}, image_size)
    writer = names.writer(place.prefix, table)
    if writer == names.OURS and notes:
        raise UserError(
            f"{word} is a run's checkpoint away from its recipe. {notes[0]} Give the run folder."
        )
    known = {"mean": MEAN, "std": STD} if writer and writer != names.OURS else {}
    about = {**known, **about, **facts}
    return _land(word, backbone, table, place, named, **about, notes=notes)


def _into(
    word: str, backbone: Backbone, table: names.Table, part: str | None, **about: Any
) -> tuple[Backbone, ImportReport]:
    """A file's weights in a network that is known."""
    net = getattr(backbone, "net", backbone)  # around networks of others there is a shell
    found = names.places_like(table, net.state_dict())
    if not found:
        first = next(iter(net.state_dict()))
        raise UserError(
            f"{word} holds nothing that looks like {about['network']}: no name ends in {first}. "
            f"Its names: {', '.join(list(table)[:SHOWN])}, ... Name the network that wrote it."
        )
    place = _chosen(word, table, found, part)
    return _land(word, backbone, table, place, _translated(table, place), **about)


def _chosen(word: str, table: names.Table, found: list[Place], part: str | None) -> Place:
    """The one backbone that is meant, or a question."""
    prefixes = [place.prefix for place in found]
    if part is not None:
        for place in found:
            if part.rstrip(".") in (place.prefix.rstrip("."), _bare(place.prefix)):
                return place
        raise UserError(
            f'{word} has no encoder "{part}".{suggest(part, prefixes)} It has: '
            f"{', '.join(repr(prefix) for prefix in prefixes)}."
        )
    choice = names.preferred(found)
    alike = [place for place in choice[1:] if not _same(table, choice[0], place)]
    if alike:
        raise UserError(
            f"{word} holds several encoders, with different weights: "
            f"{', '.join(repr(place.prefix) for place in choice)}. Say which one is "
            f"meant: --part {choice[0].prefix.rstrip('.')} (in Python: part=...)."
        )
    return choice[0]


def _land(
    word: str,
    backbone: Backbone,
    table: names.Table,
    place: Place,
    named: Mapping[str, str],
    *,
    network: str,
    notes: tuple[str, ...] = (),
    **about: Any,
) -> tuple[Backbone, ImportReport]:
    """Put the weights in, account for every name, and refuse what would not be whole."""
    net = getattr(backbone, "net", backbone)
    wanted: dict[str, Tensor] = net.state_dict()
    taken = {ours: theirs for ours, theirs in named.items() if ours in wanted}
    computed = settled_positions(net, {ours: table[theirs] for ours, theirs in named.items()})
    taken |= {ours: named[ours] for ours in computed}
    absent = [name for name in wanted if name not in taken]
    _refuse_missing(word, network, [n for n in absent if not n.endswith("num_batches_tracked")])
    _refuse_shapes(
        word, network, {n: (wanted[n], table[k]) for n, k in taken.items() if n in wanted}
    )
    used, doubles = set(taken.values()), _doubles(table, place)
    reasons = {
        name: doubles.get(name) or names.why_left(name, value, place)
        for name, value in table.items()
        if name not in used
    }
    _refuse_unknown(word, network, [name for name, why in reasons.items() if not why])
    weights = {ours: table[theirs] for ours, theirs in taken.items() if ours in wanted}
    net.load_state_dict(weights, strict=False)
    report = ImportReport(
        word=word,
        network=network,
        matched=tuple(ours for ours, theirs in taken.items() if ours == theirs),
        renamed=tuple((theirs, ours) for ours, theirs in taken.items() if ours != theirs),
        left=tuple(reasons.items()),
        missing=tuple((name, "a counter, which stays 0") for name in absent),
        notes=notes + tuple(computed.values()),
        **{"writer": names.writer(place.prefix, table), **about},
    )
    return backbone, report


def _translated(table: names.Table, place: Place) -> dict[str, str]:
    """The name in the file of each name of ours under a prefix."""
    stages = names.stages(table, place)
    own = [n for n, v in table.items() if n.startswith(place.prefix) and isinstance(v, Tensor)]
    return {names.translated(n.removeprefix(place.prefix), place, stages): n for n in own}


def _same(table: names.Table, one: Place, other: Place) -> bool:
    """Whether two places hold the same weights, as files do that list a part twice."""
    a, b = _translated(table, one), _translated(table, other)
    shared = a.keys() & b.keys()
    return bool(shared) and all(torch.equal(table[a[n]], table[b[n]]) for n in shared)


def _doubles(table: names.Table, place: Place) -> dict[str, str]:
    """Weights of the other encoders of a file, and what those are."""
    found: dict[str, str] = {}
    for other in names.places(table):
        if other.prefix == place.prefix:
            continue
        kind = "momentum encoder" if names.TEACHER.fullmatch(other.prefix) else "another encoder"
        kind = "the same weights again" if _same(table, place, other) else kind
        weights = _translated(table, other).items()
        found |= {theirs: kind for ours, theirs in weights if not re.fullmatch(names.HEAD, ours)}
    return found


def _bare(prefix: str) -> str:
    for wrapper in ("state_dict.", "model.", "module."):
        prefix = prefix.removeprefix(wrapper)
    return prefix.rstrip(".")


def _named(name: str, image_size: int | None) -> Backbone:
    """A network with random weights, by the name of BackboneConfig or torchvision's."""
    if name.startswith("torchvision:"):
        from selfsight.backbones.from_torchvision import Torchvision

        return Torchvision(name.removeprefix("torchvision:"))
    if name.startswith("timm:"):
        from selfsight.backbones.from_timm import Timm

        return Timm(name.removeprefix("timm:"), image_size=image_size)
    return BackboneConfig(name=name, image_size=image_size or 224).build()


def _refuse_missing(word: str, network: str, names: list[str]) -> None:
    if names:
        raise UserError(
            f"{word} lacks {len(names)} weights of {network}: {_list(names)}. They would stay as "
            "they were drawn, and the features would mean nothing. Give a complete file, or name "
            f"the network that it was made for: NETWORK={word.rpartition('=')[2]}"
        )


def _refuse_shapes(word: str, network: str, pairs: dict[str, tuple[Tensor, Tensor]]) -> None:
    wrong = [
        f"{name} is {tuple(theirs.shape)} and should be {tuple(ours.shape)}"
        for name, (ours, theirs) in pairs.items()
        if ours.shape != theirs.shape
    ]
    if wrong:
        file = word.rpartition("=")[2]
        raise UserError(
            f"{word} looks like {network} but has weights of other shapes: {_list(wrong, '; ')}. "
            f"Name the network that it was made for: timm:NAME={file} or torchvision:NAME={file}"
        )


def _refuse_unknown(word: str, network: str, names: list[str]) -> None:
    if names:
        raise UserError(
            f"{word} has {len(names)} weights in its backbone that {network} has no place for: "
            f"{_list(names)}. Without them the features would be others than those that were "
            f"trained. Name the network that it was made for: timm:NAME={word.rpartition('=')[2]}"
        )


def _list(names: list[str], between: str = ", ") -> str:
    more = f"{between}and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return between.join(names[:SHOWN]) + more


def _unknown(word: str) -> str:
    if word in BACKBONES:
        return (
            f'"{word}" names a network without weights. Give those with it, as "{word}=FILE", or '
            f'published ones, as "torchvision:{word}" or "timm:{word}".'
        )
    return (
        f'There is no file or run folder "{word}".{suggest(word, ("timm:", "torchvision:"))} Give '
        '"timm:NAME", "torchvision:NAME", a run folder, a file of weights, or NETWORK=FILE.'
    )
