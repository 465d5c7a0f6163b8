"""The same training with Lightly's own parts, in the same run, where Lightly is installed.

As its documentation puts MoCo and SimCLR together: its transforms on PIL images in the worker
processes of a DataLoader, its projection head, loss and momentum update. It is given what costs it
nothing: bf16, channels_last, pinned memory, images that are decoded already where they are small.
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

from selfsight.data import Source
from selfsight.data.decode_threads import num_workers
from selfsight.errors import UserError
from selfsight.recipe import Recipe, method_name
from selfsight.train.step import DTYPES

KNOWN = ("moco", "simclr")
WARM = 5  # steps
ENDLESS = 10**9  # images


class _Seen(torch.utils.data.Dataset):
    """Images as PIL reads them, through a transform."""

    def __init__(self, source: Source, transform: Any) -> None:
        self.source, self.transform = source, transform

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, i: int) -> list[Tensor]:
        found = self.source.read(i)
        if isinstance(found, np.ndarray):
            return self.transform(Image.fromarray(found).convert("RGB"))
        return self.transform(Image.open(io.BytesIO(found)).convert("RGB"))


def check(recipe: Recipe) -> Any:
    """Lightly's package; a UserError if it is not installed or has no such method."""
    name = method_name(recipe.method)
    if name not in KNOWN:
        raise UserError(
            f'--against lightly measures {" and ".join(KNOWN)}; this recipe is of "{name}". '
            "Choose a recipe of one of these."
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


def lightly(
    recipe: Recipe, source: Source, device: torch.device, *, seconds: float
) -> dict[str, float]:
    """Images per second of Lightly's transforms alone, and of its whole training."""
    theirs, name = check(recipe), method_name(recipe.method)
    size = recipe.views[0].size
    kind = "MoCoV2Transform" if name == "moco" else "SimCLRTransform"
    blur = 0.5 if recipe.views[0].blur > 0 else 0.0
    transform = getattr(theirs.transforms, kind)(input_size=size, gaussian_blur=blur)
    batches = _batches(_Seen(source, transform), recipe, device)
    augmented = _rate(lambda: next(batches), recipe.batch_size, device, seconds)
    step = _step(recipe, name, theirs, device)
    trained = _rate(lambda: step(next(batches)), recipe.batch_size, device, 2 * seconds)
    return {"augment": augmented, "end to end": trained}


def _batches(seen: _Seen, recipe: Recipe, device: torch.device) -> Iterator[list[Tensor]]:
    """Without end: of an epoch of few batches most workers would get none."""
    drawn = torch.utils.data.RandomSampler(seen, replacement=True, num_samples=ENDLESS)
    loader = torch.utils.data.DataLoader(
        seen,
        batch_size=recipe.batch_size,
        sampler=drawn,
        num_workers=num_workers(),
        pin_memory=device.type == "cuda",
    )
    return iter(loader)


def _step(
    recipe: Recipe, name: str, lightly: Any, device: torch.device
) -> Callable[[list[Tensor]], None]:
    """Forward, backward and update with Lightly's modules on the same backbone."""
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
    dtype = DTYPES[recipe.precision]

    def step(views: list[Tensor]) -> None:
        x1, x2 = (x.to(device, non_blocking=True) for x in views[:2])
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
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


def _rate(
    work: Callable[[], object], batch_size: int, device: torch.device, seconds: float
) -> float:
    """Images per second, the device's work included."""
    for _ in range(WARM):
        work()
    _wait(device)
    began, count = time.perf_counter(), 0
    while count < WARM or time.perf_counter() - began < seconds:
        work()
        count += 1
    _wait(device)
    return count * batch_size / (time.perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
