"""Measure the same training with Lightly, if it is installed.

MoCo and SimCLR are assembled as in its documentation: its transforms on PIL images in the workers
of a DataLoader, its projection head, loss and momentum update. It also gets bf16, channels_last,
pinned memory, and small images already decoded.
"""

import copy
import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from selfsight.bench.timer import synchronize
from selfsight.data import Source
from selfsight.data.cgroup_limits import available_cpus
from selfsight.errors import UserError
from selfsight.recipe import Recipe, method_name
from selfsight.train.step import autocast

SUPPORTED_METHODS = ("moco", "simclr")
WARMUP_STEPS = 5
ENDLESS = 10**9  # images


class _PILDataset(torch.utils.data.Dataset):
    """Images read by PIL and passed through a transform."""

    def __init__(self, source: Source, transform: Any) -> None:
        self.source, self.transform = source, transform

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, i: int) -> list[Tensor]:
        data = self.source.read(i)
        if isinstance(data, np.ndarray):  # PIL takes gray pixels without a channel
            image = Image.fromarray(data[:, :, 0] if data.shape[2] == 1 else data)
        else:
            image = Image.open(io.BytesIO(data))
        return self.transform(image.convert("RGB"))


def import_lightly(recipe: Recipe) -> Any:
    """Import Lightly; raise a UserError if it is not installed or lacks the method."""
    name = method_name(recipe.method)
    if name not in SUPPORTED_METHODS:
        raise UserError(
            f"--against lightly measures {' and '.join(SUPPORTED_METHODS)}; this recipe is of "
            f'"{name}". Choose a recipe of one of these.'
        )
    try:
        import lightly.loss
        import lightly.models.modules
        import lightly.models.utils
        import lightly.transforms
    except ImportError as error:
        raise UserError(
            f"--against lightly needs Lightly, which cannot be imported here ({error}). "
            "Install it with: pip install lightly"
        ) from error
    return lightly


def measure_lightly(
    recipe: Recipe,
    source: Source,
    device: torch.device,
    *,
    seconds: float,
    workers: int | None = None,
    epoch_images: int | None = None,
) -> dict[str, float]:
    """Return the images per second of Lightly's transforms, and of its training end to end.

    `workers` are the processes of its DataLoader, one per core if not given; it starts a new epoch
    after `epoch_images`, if given.
    """
    lightly, name = import_lightly(recipe), method_name(recipe.method)
    size = recipe.views[0].size
    transform_name = "MoCoV2Transform" if name == "moco" else "SimCLRTransform"
    blur = 0.5 if recipe.views[0].blur > 0 else 0.0
    transform = getattr(lightly.transforms, transform_name)(input_size=size, gaussian_blur=blur)
    batches = _batches(
        _PILDataset(source, transform),
        recipe,
        device,
        num_workers=workers or available_cpus(),
        epoch_images=epoch_images or ENDLESS,
    )
    augmented = _images_per_second(lambda: next(batches), recipe.batch_size, device, seconds)
    step = _build_step(recipe, name, lightly, device)
    trained = _images_per_second(
        lambda: step(next(batches)), recipe.batch_size, device, 2 * seconds
    )
    return {"augment": augmented, "end to end": trained}


def _batches(
    dataset: _PILDataset,
    recipe: Recipe,
    device: torch.device,
    *,
    num_workers: int,
    epoch_images: int,
) -> Iterator[list[Tensor]]:
    """Yield batches, epoch after epoch: in short ones some workers get none, and all wait."""
    count = max(epoch_images, recipe.batch_size)
    sampler = torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=count)
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=recipe.batch_size,
        sampler=sampler,
        num_workers=num_workers,
        pin_memory=device.type == "cuda",
        persistent_workers=True,
        drop_last=True,
    )
    while True:
        yield from loader


def _build_step(
    recipe: Recipe, name: str, lightly: Any, device: torch.device
) -> Callable[[list[Tensor]], None]:
    """Build a training step from Lightly's modules and the same backbone."""
    modules, dim = lightly.models.modules, recipe.method.dim  # type: ignore[attr-defined]
    backbone: Any = recipe.backbone.build()
    if name == "moco":
        head = modules.MoCoProjectionHead(backbone.dim, backbone.dim, dim)
        bank = (recipe.method.queue_size, dim)  # type: ignore[attr-defined]
    else:
        head = modules.SimCLRProjectionHead(backbone.dim, backbone.dim, dim)
        bank = (0, dim)
    criterion = lightly.loss.NTXentLoss(memory_bank_size=bank).to(device)
    student = nn.Sequential(backbone, head).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.06, momentum=0.9, weight_decay=5e-4)

    def step(views: list[Tensor]) -> None:
        x1, x2 = (x.to(device, non_blocking=True) for x in views[:2])
        with autocast(recipe, device):
            if name == "moco":
                lightly.models.utils.update_momentum(student, teacher, m=0.99)
                with torch.no_grad():
                    other = teacher(x2)
            else:
                other = student(x2)
            loss = criterion(student(x1), other)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def _images_per_second(
    function: Callable[[], object], batch_size: int, device: torch.device, seconds: float
) -> float:
    """Measure images per second, including the work of the device."""
    for _ in range(WARMUP_STEPS):
        function()
    synchronize(device)
    began, count = time.perf_counter(), 0
    while count < WARMUP_STEPS or time.perf_counter() - began < seconds:
        function()
        count += 1
    synchronize(device)
    return count * batch_size / (time.perf_counter() - began)
