"""Train a detector; new layers and the backbone may have different learning rates."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from selfsight import dist
from selfsight.errors import DivergedError, UserError
from selfsight.evals.detection.detector_settings import DetectorSettings
from selfsight.evals.detection.loader import Batch, DecodedImages, load_batches, plan_training_batch
from selfsight.nn.batch_norm import BatchNorm
from selfsight.terminal.progress import track

CHECK_EVERY = 50  # iterations between checks of the loss, which synchronize with the device


def build_optimizer(detector: Any, settings: DetectorSettings) -> torch.optim.SGD:
    """Build SGD with a parameter group for each learning rate and weight decay."""
    norms = {id(p) for m in detector.modules() if isinstance(m, BatchNorm) for p in m.parameters()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in detector.parameters():
        pretrained = id(parameter) in detector.pretrained
        lr = settings.backbone_lr if pretrained and settings.backbone_lr else settings.lr
        decay = 0.0 if id(parameter) in norms else settings.weight_decay
        groups.setdefault((lr, decay), []).append(parameter)
    param_groups = [
        {"params": parameters, "lr": lr, "peak": lr, "weight_decay": decay}
        for (lr, decay), parameters in groups.items()
    ]
    return torch.optim.SGD(param_groups, lr=settings.lr, momentum=settings.momentum)


def fit(
    detector: Any,
    images: DecodedImages,
    settings: DetectorSettings,
    *,
    seed: int,
    autocast: torch.dtype | None = None,
    progress: str | None = None,
) -> float:
    """Train to the end of the schedule; return the mean loss of the last iterations."""
    if settings.batch_size % dist.world_size():
        raise UserError(
            f"batch_size is {settings.batch_size}, but must be a multiple of the "
            f"{dist.world_size()} processes."
        )
    detector.train()
    optimizer = build_optimizer(detector, settings)
    parameters = list(detector.parameters())
    plans = (
        plan_training_batch(images.objects, settings, step, seed) for step in itertools.count()
    )
    feed = load_batches(images, plans, settings)
    total: Any = 0.0
    count = 0
    for step in track(range(settings.iterations), progress):
        factor = float(settings.schedule.lr(step, settings.iterations, 1.0))
        for group in optimizer.param_groups:
            group["lr"] = factor * group["peak"]
        loss = total_loss(detector, next(feed), autocast)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        average_gradients(parameters)
        optimizer.step()
        total, count = total + loss.detach(), count + 1
        if (step + 1) % CHECK_EVERY == 0 or step + 1 == settings.iterations:
            last = float(dist.mean(total)) / count
            if not math.isfinite(last):
                raise DivergedError(
                    f"The detector's loss is {last} after {step + 1} iterations: training has "
                    f"diverged. Lower lr, which is {settings.lr}, or lengthen the warm-up."
                )
            total, count = 0.0, 0
    title = None if progress is None else "detector, batch-norm statistics"
    last_batches = itertools.islice(feed, settings.precise_bn)
    recompute_batch_norm(detector, track(last_batches, title, settings.precise_bn), autocast)
    feed.close()
    return last


def total_loss(detector: Any, batch: Batch, autocast: torch.dtype | None) -> Tensor:
    """Sum the losses of a batch."""
    x = batch.pixels.contiguous(memory_format=torch.channels_last)
    with torch.autocast(x.device.type, autocast, enabled=autocast is not None):
        losses = detector.losses(x, batch.sizes, batch.targets, batch.position)
    return torch.stack(list(losses.values())).sum()


def average_gradients(parameters: list[nn.Parameter]) -> None:
    """Average gradients over processes; layers that a batch did not use count as 0.

    Weight decay and momentum still apply to them, on any number of processes, as in detectron2.
    """
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    dist.average_gradients(parameters)


@torch.no_grad()
def recompute_batch_norm(
    detector: Any, feed: Iterator[Batch], autocast: torch.dtype | None = None
) -> None:
    """Recompute batch-norm statistics as means over some batches (detectron2's PreciseBN).

    Running averages lag behind the weights.
    """
    norms = [m for m in detector.modules() if isinstance(m, BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for count, batch in enumerate(feed):
        for norm in norms:
            norm.momentum = 1 / (count + 1)
        total_loss(detector, batch, autocast)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
