"""Load an encoder of timm, of torchvision, of a run folder, or from another project's file.

The report accounts for every name of a file: matched, renamed, unused (with the reason), or
missing. An error is raised if a part of the backbone would keep its random initialization.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from selfsight.backbones import BACKBONES, BackboneConfig
from selfsight.backbones.foreign_checkpoints import weight_names
from selfsight.backbones.foreign_checkpoints.check_weights import (
    MAX_LISTED,
    check_finite,
    check_missing,
    check_shapes,
    check_unknown,
)
from selfsight.backbones.foreign_checkpoints.import_report import ImportReport
from selfsight.backbones.foreign_checkpoints.infer_network import (
    SOLO_LEARN_NOTE,
    add_class_position,
    find_computed_positions,
    infer_network,
    infer_solo_learn,
)
from selfsight.backbones.foreign_checkpoints.read_checkpoint import (
    read_checkpoint,
    read_encoder_settings,
    read_preprocessing,
    read_run_checkpoint,
)
from selfsight.backbones.foreign_checkpoints.weight_names import BackboneLocation
from selfsight.backbones.resnet import Stem
from selfsight.check_settings import check_setting
from selfsight.data.eval_transform import MEAN, STD
from selfsight.errors import UserError, suggest
from selfsight.nn import Backbone
from selfsight.nn.batch_norm import convert_batch_norm
from selfsight.nn.group_and_layer_norm import replace_batch_norm
from selfsight.outside_code import find_again
from selfsight.run_files.run_folder import Run


def load_backbone(
    spec: str,
    *,
    image_size: int | None = None,
    device: torch.device | str = "cpu",
    trust: bool = False,
    part: str | None = None,
    stem: str | None = None,
) -> tuple[Backbone, ImportReport]:
    """Load an encoder in evaluation mode; also report how every weight was used.

    `spec` is "timm:NAME", "torchvision:NAME", a run folder, a file, or "NETWORK=FILE", which loads
    a file's weights into a named network ("resnet50", "timm:NAME", "torchvision:NAME").
    `trust` allows a file to run code while it is read. `part` selects an encoder of a file with
    several, by the prefix of its names. `stem` is the stem of a ResNet in a file, if shapes do not
    determine it: "lowres", "half" or "lowres_pad2".
    """
    path = Path(spec).expanduser()
    name, equals, file = spec.partition("=")
    check_setting("stem", stem, Stem | None)
    if stem is not None and (":" in name or path.is_dir()):
        raise UserError(
            f'--stem is "{stem}", but {spec} states its own. It is for files of weights of a '
            "ResNet, whose shapes do not show it; leave it out."
        )
    exported = read_preprocessing(Path(file).expanduser() if equals else path)
    image_size = image_size or exported.pop("image_size", None)
    if path.is_dir():
        backbone, report = _from_run(spec, Run(path), None, trust=trust)
    elif path.is_file():
        checkpoint, run = read_checkpoint(path, trust=trust), Run(path.parent.parent)
        if run.recipe_path.exists() and path.parent == run.checkpoints:
            backbone, report = _from_run(spec, run, checkpoint, trust=trust)
        else:
            backbone, report = _from_file(spec, checkpoint, image_size, part, stem)
    elif equals:
        checkpoint = read_checkpoint(Path(file).expanduser(), trust=trust)
        backbone, report = _into_named(spec, name, checkpoint, image_size, part, stem)
    elif spec.startswith("timm:"):
        backbone, report = _from_timm(spec, image_size)
    elif spec.startswith("torchvision:"):
        backbone, report = _from_torchvision(spec, image_size)
    else:
        raise UserError(_unknown(spec))
    report = replace(report, image_size=image_size or report.image_size, **exported)
    return backbone.to(device).eval(), report


def _from_timm(spec: str, image_size: int | None) -> tuple[Backbone, ImportReport]:
    from selfsight.backbones.from_timm import TimmBackbone, check_published, published_transform

    name = spec.removeprefix("timm:")
    check_published(name)
    backbone = TimmBackbone(name, image_size=image_size)
    stated = backbone.load_published()
    check_finite(spec, backbone.net.state_dict())
    return backbone, ImportReport(
        spec=spec,
        network=name,
        writer="timm",
        matched=tuple(backbone.net.state_dict()),
        license=stated,
        **published_transform(name, image_size),
    )


def _from_torchvision(spec: str, image_size: int | None) -> tuple[Backbone, ImportReport]:
    from selfsight.backbones.from_torchvision import load_published, published_transform

    name = spec.removeprefix("torchvision:")
    checkpoint = load_published(name)
    about = {"writer": "torchvision", **published_transform(name, image_size)}
    if weight_names.find_backbones(checkpoint):
        return _from_file(spec, checkpoint, image_size, None, None, about)
    backbone = _build_network(spec, image_size)
    return _into(spec, backbone, checkpoint, None, network=name, **about)


def _from_run(
    spec: str, run: Run, checkpoint: weight_names.Checkpoint | None, *, trust: bool
) -> tuple[Backbone, ImportReport]:
    """Load the student's backbone from a run's last checkpoint, or from the given one."""
    config, norm, view = read_encoder_settings(run)
    if ":" in config.name and not config.name.startswith("timm:") and not trust:
        raise UserError(
            f'{run.path} uses the network "{config.name}" from outside selfsight, and loading it '
            "runs that code. If you trust it, add --trust (in Python: trust=True)."
        )
    places = run.saved_recipe().get("outside_code", {})
    find_again({name: folder for name, folder in places.items() if name == config.name})
    backbone = convert_batch_norm(config.build(), None)
    if norm != "bn":
        backbone = replace_batch_norm(backbone, norm)
    assert isinstance(backbone, Backbone)
    return _into(
        spec,
        backbone,
        read_run_checkpoint(run) if checkpoint is None else checkpoint,
        "method.student.backbone.",
        network=config.name,
        writer=weight_names.SELFSIGHT_RUN,
        image_size=view.size,
        mean=view.mean,
        std=view.std,
        channels=config.in_channels,
    )


def _from_file(
    spec: str,
    checkpoint: weight_names.Checkpoint,
    image_size: int | None,
    part: str | None,
    stem: str | None,
    about: Mapping[str, Any] = {},
) -> tuple[Backbone, ImportReport]:
    """Load a file into the network that its names and shapes indicate."""
    locations = weight_names.find_backbones(checkpoint)
    if not locations:
        first_names = ", ".join(list(checkpoint)[:MAX_LISTED])
        raise UserError(
            f"{spec} holds no ResNet or ViT that can be recognized by its names "
            f"({len(checkpoint)} names: {first_names}, ...). If you know the network, name it: "
            f"timm:NAME={spec}"
        )
    location = _select_backbone(spec, checkpoint, locations, part)
    named = weight_names.names_in_file(checkpoint, location)
    weights = {name: checkpoint[file_name] for name, file_name in named.items()}
    writer = weight_names.guess_writer(location.prefix, checkpoint)
    cifar = infer_solo_learn(checkpoint, location) if stem is None else {}
    stem = cifar.pop("stem", stem)
    backbone, facts, notes = infer_network(spec, weights, image_size, stem=stem)
    if writer == weight_names.SELFSIGHT_RUN and notes:
        raise UserError(
            f"{spec} is a run's checkpoint away from its recipe. {notes[0]} Give the run folder."
        )
    about = {**_project_statistics(writer), **about, **facts, **cifar}
    notes += (SOLO_LEARN_NOTE,) if cifar else ()
    return _load_weights(spec, backbone, checkpoint, location, named, **about, notes=notes)


def _into_named(
    spec: str,
    name: str,
    checkpoint: weight_names.Checkpoint,
    image_size: int | None,
    part: str | None,
    stem: str | None,
) -> tuple[Backbone, ImportReport]:
    """Load a file's weights into the network of this name."""
    about: dict[str, Any] = {}
    if name in BACKBONES and stem is None:
        cifar = [infer_solo_learn(checkpoint, at) for at in weight_names.find_backbones(checkpoint)]
        about = next((facts for facts in cifar if facts), {})
        stem = about.pop("stem", None)
        about |= {"notes": (SOLO_LEARN_NOTE,)} if about else {}
    network = _build_network(name, image_size, stem)
    library = _library_transform(name, image_size)
    return _into(spec, network, checkpoint, part, library, network=name, **about)


def _into(
    spec: str,
    backbone: Backbone,
    checkpoint: weight_names.Checkpoint,
    part: str | None,
    library: Mapping[str, Any] = {},
    **about: Any,
) -> tuple[Backbone, ImportReport]:
    """Load a file's weights into a given network.

    `library` says how timm or torchvision transform images for it; the project that wrote the file
    may have other statistics.
    """
    net = getattr(backbone, "net", backbone)  # networks of timm and torchvision are wrapped
    locations = weight_names.find_network(checkpoint, net.state_dict())
    if not locations:
        first = next(iter(net.state_dict()))
        raise UserError(
            f"{spec} holds no weights of {about['network']}: no name ends in {first}. "
            f"Its names: {', '.join(list(checkpoint)[:MAX_LISTED])}, ... "
            "Name the network that wrote it."
        )
    location = _select_backbone(spec, checkpoint, locations, part)
    writer = about.get("writer", weight_names.guess_writer(location.prefix, checkpoint))
    about = {**library, **_project_statistics(writer), **about}
    if about.get("native"):
        about["native"] = replace(about["native"], mean=about["mean"], std=about["std"])
    return _load_weights(
        spec,
        backbone,
        checkpoint,
        location,
        weight_names.names_in_file(checkpoint, location),
        **about,
    )


def _select_backbone(
    spec: str,
    checkpoint: weight_names.Checkpoint,
    locations: list[BackboneLocation],
    part: str | None,
) -> BackboneLocation:
    """Select the backbone to load; raise a UserError if the choice is ambiguous."""
    prefixes = [location.prefix for location in locations]
    if part is not None:
        for location in locations:
            if part.rstrip(".") in (
                location.prefix.rstrip("."),
                _without_wrappers(location.prefix),
            ):
                return location
        raise UserError(
            f'{spec} has no encoder "{part}".{suggest(part, prefixes)} It has: '
            f"{', '.join(repr(prefix) for prefix in prefixes)}."
        )
    choice = weight_names.prefer_students(locations)
    different = [
        location
        for location in choice[1:]
        if not weight_names.hold_same_weights(checkpoint, choice[0], location)
    ]
    if different:
        raise UserError(
            f"{spec} holds several encoders, with different weights: "
            f"{', '.join(repr(location.prefix) for location in choice)}. Select one: "
            f"--part {choice[0].prefix.rstrip('.')} (in Python: part=...)."
        )
    return choice[0]


def _load_weights(
    spec: str,
    backbone: Backbone,
    checkpoint: weight_names.Checkpoint,
    location: BackboneLocation,
    named: Mapping[str, str],
    *,
    network: str,
    notes: tuple[str, ...] = (),
    **about: Any,
) -> tuple[Backbone, ImportReport]:
    """Load the weights and account for every name; raise a UserError if any would be random."""
    net = getattr(backbone, "net", backbone)
    expected: dict[str, Tensor] = net.state_dict()
    used = {name: file_name for name, file_name in named.items() if name in expected}
    values = {name: checkpoint[file_name] for name, file_name in named.items()}
    computed = find_computed_positions(net, values)
    values = add_class_position(values, expected)
    resize_positions = getattr(backbone, "resize_positions", dict)  # of timm's networks
    values = resize_positions(values)
    used |= {name: named[name] for name in computed}
    absent = [name for name in expected if name not in used]
    check_missing(spec, network, [n for n in absent if not n.endswith("num_batches_tracked")])
    check_shapes(spec, network, {n: (expected[n], values[n]) for n in used if n in expected})
    used_names, others = set(used.values()), weight_names.list_other_encoders(checkpoint, location)
    reasons = {
        name: others.get(name) or weight_names.reason_unused(name, value, location)
        for name, value in checkpoint.items()
        if name not in used_names
    }
    check_unknown(spec, network, [name for name, why in reasons.items() if not why])
    weights = {name: values[name] for name in used if name in expected}
    check_finite(
        spec, {used[name]: value.to(expected[name].dtype) for name, value in weights.items()}
    )
    net.load_state_dict(weights, strict=False)
    report = ImportReport(
        spec=spec,
        network=network,
        matched=tuple(name for name, file_name in used.items() if name == file_name),
        renamed=tuple((file_name, name) for name, file_name in used.items() if name != file_name),
        unused=tuple(reasons.items()),
        missing=tuple((name, "a counter, which stays at 0") for name in absent),
        notes=notes + tuple(computed.values()),
        **{"writer": weight_names.guess_writer(location.prefix, checkpoint), **about},
    )
    return backbone, report


def _without_wrappers(prefix: str) -> str:
    for wrapper in ("state_dict.", "model.", "module."):
        prefix = prefix.removeprefix(wrapper)
    return prefix.rstrip(".")


def _project_statistics(writer: str) -> dict[str, Any]:
    """Return mean and std of a project's training, if it is known; all use ImageNet's."""
    known = writer not in ("", weight_names.SELFSIGHT_RUN, "timm", "torchvision")
    return {"mean": MEAN, "std": STD} if known else {}


def _library_transform(name: str, image_size: int | None) -> dict[str, Any]:
    """Return image size, statistics and transform of a network of timm or torchvision."""
    if name.startswith("torchvision:"):
        from selfsight.backbones import from_torchvision

        return from_torchvision.published_transform(name.removeprefix("torchvision:"), image_size)
    if name.startswith("timm:"):
        from selfsight.backbones import from_timm

        return from_timm.published_transform(name.removeprefix("timm:"), image_size)
    return {}


def _build_network(name: str, image_size: int | None, stem: str | None = None) -> Backbone:
    """Build a network with random weights, by the name of BackboneConfig or torchvision's."""
    if name.startswith("torchvision:"):
        from selfsight.backbones.from_torchvision import TorchvisionBackbone

        return TorchvisionBackbone(name.removeprefix("torchvision:"))
    if name.startswith("timm:"):
        from selfsight.backbones.from_timm import TimmBackbone

        return TimmBackbone(name.removeprefix("timm:"), image_size=image_size)
    settings: dict[str, Any] = {"stem": stem or "auto"}
    return BackboneConfig(name=name, image_size=image_size or 224, **settings).build()


def _unknown(spec: str) -> str:
    if spec in BACKBONES:
        return (
            f'"{spec}" names a network without weights. Give a file with it, as "{spec}=FILE", or '
            f'use published ones, as "torchvision:{spec}" or "timm:{spec}".'
        )
    return (
        f'There is no file or run folder "{spec}".{suggest(spec, ("timm:", "torchvision:"))} Give '
        '"timm:NAME", "torchvision:NAME", a run folder, a file of weights, or NETWORK=FILE.'
    )
