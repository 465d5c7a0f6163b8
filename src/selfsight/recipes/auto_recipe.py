"""The automatic recipe: settings for the images and the device, each with its reason."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from selfsight.backbones import BackboneConfig, stem_for
from selfsight.data.pixel_statistics import PixelKind
from selfsight.data.sources.tiles import count_tiles
from selfsight.device import adapt_to_device
from selfsight.methods import MethodConfig
from selfsight.optim import Optim, Schedule
from selfsight.recipe import Data, Recipe, method_config, method_name
from selfsight.train.training_progress import format_duration
from selfsight.views import View, for_channels
from selfsight.views.domains import describe_kind, for_domain, for_kind, resolve_domain

Reasons = dict[str, str]
# Of uncompiled training. A ResNet-18 trains 1.9 times as fast compiled as beside the process that
# compiles. The first run of a network gets compiled steps after a minute or more, while it trains;
# from COMPILE_MINUTES on they save more than they cost (docs/performance.md).
CPU_MINUTES, GPU_MINUTES, COMPILE_MINUTES = 20, 10, 3
CPU_SPEED, GPU_SPEED = 2000.0, 15_000.0  # images/s of 32 pixels, where it is not measured
# Few to choose from: a small change of the speed rarely changes them. On a GPU at least a hundred,
# however long that takes.
EPOCHS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 300, 400)
GPU_EPOCHS = (100, 150, 200, 300, 400, 600, 800, 1000)


@dataclass(frozen=True, kw_only=True)
class DataProfile:
    """Properties of the data that the recipe depends on."""

    count: int
    short_side: int  # median, in pixels
    size: tuple[int, int] = (0, 0)  # median width and height
    channels: int = 3
    kind: PixelKind | None = None  # of images that are not photographs
    mirrored: bool = True  # the mirror image of one could be another


def build_auto_recipe(
    data: DataProfile,
    device: torch.device,
    *,
    method: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    processes: int = 1,
    image_size: int | None = None,
    domain: str = "auto",
    images_per_second: float | None = None,
) -> tuple[Recipe, Reasons]:
    """Build a recipe for these images on this device, with the given settings if any.

    The batch size is divisible by the number of processes. `image_size` is that of an encoder to
    start from. The views fit the domain and, for images that are not photographs, the statistics
    of the data. `images_per_second` is the measured speed of uncompiled training; None if it was
    not measured.
    """
    reasons: Reasons = {}
    gpu = device.type == "cuda"

    size, reasons["views"] = _view_size(data, gpu)
    if image_size is not None:
        size, reasons["views"] = image_size, f"the encoder to start from expects {image_size} px"
    tile, why_tile = _tile(data, size, domain)
    if tile is not None:
        data = replace(data, count=count_images(data, tile), short_side=tile)
        reasons["data.tile"] = why_tile
    store, reasons["data.store_size"] = _store_size(data, size)
    backbone, reasons["backbone"] = _backbone(data, size, gpu)
    if method is not None and method_config(method).needs_labels:
        # A ViT that is given in its place trains its patches, as supervised ViTs do.
        backbone = replace(backbone, freeze_patch=False)
    if batch_size is None:
        queue = method is not None and getattr(method_config(method)(), "queue_size", 0) > 0
        batch_size, reasons["batch_size"] = _batch_size(data, size, gpu, queue, processes)
    speed = images_per_second or _usual_speed(size, backbone, gpu)
    if epochs is None:
        how = "an assumed" if images_per_second is None else "the measured"
        epochs, reasons["epochs"] = _epochs(data, gpu, speed, how)
    steps = epochs * max(1, data.count // batch_size)
    config, why = _method(data, method, batch_size, steps, size, gpu)
    reasons |= why
    optim, reasons["optim"] = _optim(config, epochs, gpu)
    view = View(size=size, scale=(0.2, 1.0), blur=0.5 if size > 64 else 0.0)
    if domain == "auto" and not data.mirrored:
        view = replace(view, flip=0.0)
        reasons["views"] += "; not mirrored, since mirrored images look unlike the data"
    if data.kind is None:
        view = for_channels(view if domain == "auto" else for_domain(view, domain), data.channels)
    else:
        view = for_kind(view, data.kind, domain)
    if why_views := describe_kind(data.kind, domain):
        reasons["views"] += f"; {why_views}"
    per_epoch = max(1, data.count // batch_size)
    recipe = Recipe(
        method=config,
        views=config.match_views((view, view)),
        optim=optim,
        backbone=backbone,
        data=Data(
            store_size=store,
            channels=data.channels,
            dtype="uint8" if data.kind is None else data.kind.dtype,
            tile=tile,
        ),
        epochs=epochs,
        batch_size=batch_size,
        precision="bf16",
        log_every=max(1, min(50, steps // 100)),
        save_every=max(1, 200 // per_epoch),
        measure_every=max(1, epochs // 10),
    )
    recipe, adapted = adapt_to_device(recipe, device)
    reasons |= {"precision": "the GPU has bf16"} | adapted
    if recipe.compile:
        pays_off, reasons["compile"] = _compilation_pays_off(steps * batch_size / speed / 60)
        recipe = replace(recipe, compile=pays_off)
    return recipe, reasons


def _view_size(data: DataProfile, gpu: bool) -> tuple[int, str]:
    side = data.short_side
    if side <= 48:
        return 32, f"images are {side} px, so views are 32 px"
    if side <= 96 or not gpu:
        why = "" if side <= 96 else "; the CPU is too slow for larger views"
        return 64, f"images are {side} px, so views are 64 px{why}"
    if side <= 192:
        return 128, f"images are {side} px, so views are 128 px"
    return 224, f"images are {side} px, so views have the usual 224 px"


def _tile(data: DataProfile, size: int, domain: str) -> tuple[int | None, str]:
    """Cut large images, if views keep their scale, into tiles that views fill without resizing."""
    if data.kind is not None:
        domain = resolve_domain(data.kind, domain)
    tile = size * 5 // 4
    if domain in ("auto", "photographs") or data.short_side < 2 * tile:
        return None, ""
    width, height = data.size
    count = _count_tiles(data, tile)
    return tile, f"images of {width} x {height} px give {count} tiles each, at their own scale"


def count_images(data: DataProfile, tile: int | None) -> int:
    """Number of images to train on: of the tiles that these are cut into, if they are."""
    return data.count if tile is None else data.count * _count_tiles(data, tile)


def _count_tiles(data: DataProfile, tile: int) -> int:
    width, height = data.size
    return count_tiles(width, tile) * count_tiles(height, tile)


def _store_size(data: DataProfile, size: int) -> tuple[int, str]:
    if data.short_side <= size:
        return size, "images are stored at their original size"
    store = min(data.short_side, size * 3 // 2)
    return (
        store,
        f"views of {size} px are cropped from images with a short side of {store} px",
    )


def _backbone(data: DataProfile, size: int, gpu: bool) -> tuple[BackboneConfig, str]:
    if not gpu:
        name, why = "resnet8_narrow", "a small, narrow ResNet, for the CPU"
    elif size <= 64 or data.count < 50_000:
        name, why = "resnet18", "ResNet-18: enough for few or small images"
    else:
        name, why = "resnet50", "ResNet-50, the usual choice"
    stem_names = {"lowres": "low-resolution", "half": "halving", "imagenet": "ImageNet"}
    stem = stem_names[stem_for(size, name)]
    config = BackboneConfig(name=name, in_channels=data.channels, image_size=size)
    return config, f"{why}, with the {stem} stem for views of {size} px"


def _batch_size(
    data: DataProfile, size: int, gpu: bool, queue: bool, processes: int
) -> tuple[int, str]:
    most = 512 if gpu and size <= 64 else 256
    share = 10 if queue else 8  # a queue holds a batch or more, and at most a tenth of all
    batch = 8
    while batch > 2 and batch * 2 > data.count:  # an epoch has two batches or more
        batch //= 2
    while batch * 2 <= most and batch * 2 * share <= data.count:
        batch *= 2
    why = f"; {processes} processes share it equally" if batch % processes else ""
    batch = max(batch // processes, 1) * processes
    return batch, f"{data.count} images give {max(1, data.count // batch)} steps an epoch{why}"


def _usual_speed(size: int, backbone: BackboneConfig, gpu: bool) -> float:
    if not gpu:
        return CPU_SPEED * 32 / size
    return GPU_SPEED * (32 / size) ** 1.3 / (2 if backbone.name == "resnet50" else 1)


def _epochs(data: DataProfile, gpu: bool, speed: float, how: str) -> tuple[int, str]:
    choices, minutes = (GPU_EPOCHS, GPU_MINUTES) if gpu else (EPOCHS, CPU_MINUTES)
    most = minutes * 60 * speed / data.count
    epochs = max((e for e in choices if e <= most), default=choices[0])
    duration = format_duration(epochs * data.count / speed)
    where = "uncompiled on the GPU" if gpu else "on the CPU"
    return epochs, f"{duration} at {how} {speed:.0f} images/s {where}"


def _method(
    data: DataProfile, name: str | None, batch_size: int, steps: int, size: int, gpu: bool
) -> tuple[MethodConfig, Reasons]:
    reasons: Reasons = {}
    config_class = method_config(name or ("mocov3" if gpu else "simclr"))
    if name is None and gpu:
        reasons["method"] = "mocov3 trains well with small batches and needs no queue"
    elif name is None:
        reasons["method"] = "simclr has no teacher to run, which matters on a CPU"
    heads = {"temperature": 0.2, "dim": 256 if gpu else 128, "hidden_dim": 1024 if gpu else 128}
    heads["out_dim"] = 4096  # of the paper's 65536: 0.4 points less
    settings: dict[str, Any] = {
        f: v for f, v in heads.items() if f in config_class.__dataclass_fields__
    }
    if "num_slices" in config_class.__dataclass_fields__:
        settings |= {"dim": 64} if gpu else {"dim": 16, "hidden_dim": 256, "num_slices": 64}
        reasons["method.dim"] = "SIGReg asks for as many independent numbers of each image"
    if not gpu and "out_dim" in settings:
        settings |= {"out_dim": 128, "hidden_dim": 256, "num_layers": 2, "head_norm": True}
        settings |= {"momentum_end": 0.99, "freeze_epochs": 0}
        reasons["method.head_norm"] = "a short run needs batch norm in a small head"
    if size <= 64 and "num_small" in config_class.__dataclass_fields__:
        settings["num_small"] = 0
        reasons["method.num_small"] = f"views of {size} px are too small for smaller ones"
    if "momentum" in config_class.__dataclass_fields__:
        # The teacher should forget its initial weights within a few per cent of the run.
        settings["momentum"] = 0.95 if steps < 1000 else 0.99 if steps < 20_000 else 0.996
        reasons["method.momentum"] = f"the teacher averages over a few per cent of {steps} steps"
    defaults: Any = config_class()
    longest_queue = max(2, data.count // 10)
    if getattr(defaults, "queue_size", 0) > longest_queue:
        # A multiple of the batch size if one fits; NNCLR and JCL need at least a batch.
        settings["queue_size"] = longest_queue // batch_size * batch_size or batch_size
        reasons["method.queue_size"] = (
            f"at most a tenth of {data.count} images"
            if longest_queue >= batch_size
            else f"one batch: a tenth of {data.count} images is less"
        )
    if "freeze_steps" in config_class.__dataclass_fields__:
        # The paper's 313 are an epoch of ImageNet with batches of 4096.
        settings["freeze_steps"] = min(defaults.freeze_steps, max(1, data.count // batch_size))
        reasons["method.freeze_steps"] = "one epoch at most"
    if getattr(defaults, "num_prototypes", 0) > batch_size:
        settings["num_prototypes"] = batch_size
        reasons["method.num_prototypes"] = "at most the batch size"
    groups = [n for n in range(2, min(32, batch_size // 2) + 1) if batch_size % n == 0]
    if defaults.bn == "shuffle" and groups:
        settings["bn_group"] = max(groups)
        reasons["method.bn_group"] = "shuffled batch norm in groups, as on several GPUs"
    elif defaults.bn == "shuffle":
        settings["bn"] = "sync"
        reasons["method.bn"] = f"a batch of {batch_size} has no two groups of two or more"
    known = config_class.__dataclass_fields__  # of a method from outside, maybe not all
    return config_class(**{key: value for key, value in settings.items() if key in known}), reasons


def _optim(config: MethodConfig, epochs: int, gpu: bool) -> tuple[Optim, str]:
    name = method_name(config)
    predictor = "constant" if name == "simsiam" else "same"
    on_cpu = 1e-2 if name == "simclr" else 2e-3  # MoCo and JCL fail at 1e-2
    optim = Optim(
        name="adamw",
        lr=1e-3 if gpu else on_cpu,
        weight_decay=1e-2 if gpu else 1e-4,
        exclude_1d=True,
        predictor_lr=predictor,  # type: ignore[arg-type]
        schedule=Schedule(warmup_epochs=min(10.0, epochs / 20)),
    )
    return optim, "AdamW trains fastest in short runs; cosine schedule with a short warm-up"


def _compilation_pays_off(minutes: float) -> tuple[bool, str]:
    takes = f"the run takes about {minutes:.0f} min"
    if minutes < COMPILE_MINUTES:
        return False, f"{takes}, too short for compilation to pay off"
    return True, f"{takes} uncompiled, long enough for compilation to pay off"
