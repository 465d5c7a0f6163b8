"""Train a detector by iterations; new layers and the backbone may have rates of their own."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from selfsight import dist
from selfsight.errors import DivergedError, UserError
from selfsight.evals.detection.detector_settings import DetectorSettings
from selfsight.evals.detection.loader import Batch, DecodedImages, batches, training_plan
from selfsight.nn.batch_norm import BatchNorm
from selfsight.progress import track

LOOK_EVERY = 50  # iterations between two looks at the loss, which make the host wait


def optimizer_of(detector: Any, setting: DetectorSettings) -> torch.optim.SGD:
    """SGD with a group for each rate and decay."""
    norms = {id(p) for m in detector.modules() if isinstance(m, BatchNorm) for p in m.parameters()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in detector.parameters():
        old = id(parameter) in detector.pretrained
        rate = setting.backbone_lr if old and setting.backbone_lr else setting.lr
        decay = 0.0 if id(parameter) in norms else setting.weight_decay
        groups.setdefault((rate, decay), []).append(parameter)
    made = [
        {"params": parameters, "lr": rate, "peak": rate, "weight_decay": decay}
        for (rate, decay), parameters in groups.items()
    ]
    return torch.optim.SGD(made, lr=setting.lr, momentum=setting.momentum)


def fit(
    detector: Any,
    images: DecodedImages,
    setting: DetectorSettings,
    *,
    seed: int,
    autocast: torch.dtype | None = None,
    progress: str | None = None,
) -> float:
    """Train to the end of the schedule; the mean loss of the last iterations."""
    if setting.batch_size % dist.world_size():
        raise UserError(
            f"batch_size is {setting.batch_size}, which {dist.world_size()} processes cannot share "
            "evenly. Give a multiple of their number."
        )
    detector.train()
    optimizer = optimizer_of(detector, setting)
    parameters = list(detector.parameters())
    plans = (training_plan(images.objects, setting, step, seed) for step in itertools.count())
    feed = batches(images, plans, setting)
    total: Any = 0.0
    seen = 0
    for step in track(range(setting.iterations), progress):
        share = float(setting.schedule.lr(step, setting.iterations, 1.0))
        for group in optimizer.param_groups:
            group["lr"] = share * group["peak"]
        loss = loss_of(detector, next(feed), autocast)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        average_gradients(parameters)
        optimizer.step()
        total, seen = total + loss.detach(), seen + 1
        if (step + 1) % LOOK_EVERY == 0 or step + 1 == setting.iterations:
            last = float(dist.mean(total)) / seen
            if not math.isfinite(last):
                raise DivergedError(
                    f"The detector's loss is {last} after {step + 1} iterations: training has "
                    f"diverged. Lower lr, which is {setting.lr}, or lengthen the warm-up."
                )
            total, seen = 0.0, 0
    title = None if progress is None else "detector, statistics of its norms"
    last_batches = itertools.islice(feed, setting.precise_bn)
    measure_norms(detector, track(last_batches, title, setting.precise_bn), autocast)
    feed.close()
    return last


def loss_of(detector: Any, batch: Batch, autocast: torch.dtype | None) -> Tensor:
    """The sum of a batch's losses."""
    x = batch.pixels.contiguous(memory_format=torch.channels_last)
    with torch.autocast(x.device.type, autocast, enabled=autocast is not None):
        losses = detector.losses(x, batch.sizes, batch.targets, batch.position)
    return torch.stack(list(losses.values())).sum()


def average_gradients(parameters: list[nn.Parameter]) -> None:
    """The mean over processes, in one message; a layer that a process did not use counts as 0."""
    if dist.world_size() == 1:
        return
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    grads = [p.grad for p in parameters if p.grad is not None]
    mean = dist.mean(torch.cat([g.flatten() for g in grads]))
    for grad, part in zip(grads, mean.split([g.numel() for g in grads]), strict=True):
        grad.copy_(part.view_as(grad))


@torch.no_grad()
def measure_norms(
    detector: Any, feed: Iterator[Batch], autocast: torch.dtype | None = None
) -> None:
    """Take the norms' statistics anew, as plain means over some batches (detectron2's PreciseBN).

    Running averages lag behind weights that have just moved.
    """
    norms = [m for m in detector.modules() if isinstance(m, BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for count, batch in enumerate(feed):
        for norm in norms:
            norm.momentum = 1 / (count + 1)
        loss_of(detector, batch, autocast)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
