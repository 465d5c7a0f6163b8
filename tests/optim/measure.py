"""`python -m tests.optim.measure`: LARS and the teacher's update, by torch and by Triton.

Milliseconds, on a GPU as a CUDA graph, beside the time to move the bytes at 4.3 TB/s, and the
largest difference of the results, relative to the largest number of a tensor. Without a GPU both
are torch's.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from selfsight.bench.timer import median_ms
from selfsight.nn import Teacher, ema_teacher
from selfsight.optim import LARS, lars, param_groups
from selfsight.rng import use_triton

SECONDS, STEPS = 0.3, 3
BANDWIDTH = 4.3e9  # bytes in a millisecond
LARS_BYTES, TEACHER_BYTES = 7 * 4, 3 * 4  # of a parameter, read and written
HEADS = {  # backbone and widths
    "MoCo v3's projector and predictor": ("resnet18", (512, 4096, 256, 4096, 256)),
    "MoCo v3's projector": ("resnet18", (512, 4096, 256)),
    "Barlow Twins' projector": ("resnet50", (2048, 8192, 8192, 8192)),
}
Update = Callable[[], object]


def build(name: str, device: torch.device) -> nn.Module:
    """A backbone and its heads."""
    torch.manual_seed(0)
    backbone_name, (features, *widths) = HEADS[name]
    backbone: Any = torchvision.models.get_model(backbone_name)
    backbone.fc = nn.Identity()
    heads = torchvision.ops.MLP(features, widths, norm_layer=nn.BatchNorm1d, bias=False)
    net: Any = nn.Sequential(backbone, heads).to(device)
    return net.to(memory_format=torch.channels_last)


def prepare_lars(net: nn.Module, variant: str, device: torch.device) -> tuple[Update, list[Tensor]]:
    """A step, and the tensors that it changes after the first."""
    optimizer: Any = LARS(
        param_groups(net),
        lr=torch.tensor(0.1, device=device),
        weight_decay=1e-6,
        variant=variant,  # type: ignore[arg-type]
    )
    optimizer.found_inf = torch.zeros((), device=device)
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    params = list(net.parameters())
    return optimizer.step, [*params, *(optimizer.state[p]["momentum_buffer"] for p in params)]


def prepare_teacher(
    net: nn.Module, momentum_on: str, device: torch.device
) -> tuple[Update, list[Tensor]]:
    """An update, and the tensors that it changes; the momentum is on the "host" or the "device"."""
    teacher, skipped = Teacher(net), torch.zeros((), device=device)
    momentum: Any = 0.996
    if momentum_on == "device":
        momentum = torch.tensor(momentum, dtype=torch.float64, device=device)
    with torch.no_grad():
        for p in teacher.parameters():
            p.normal_()
    return lambda: teacher.follow(net, momentum, skipped=skipped), list(teacher.parameters())


def compare(prepare: Any, net: nn.Module, how: str, device: torch.device) -> list[float]:
    """Milliseconds by torch and by Triton, and the difference after some steps."""
    times: list[float] = []
    results: list[Sequence[Tensor]] = []
    for choose in (lambda _: False, use_triton):
        lars.use_triton = ema_teacher.use_triton = choose  # type: ignore[attr-defined]
        torch.manual_seed(1)
        update, tensors = prepare(copy.deepcopy(net), how, device)
        for _ in range(STEPS):
            update()
        results.append([t.detach().clone() for t in tensors])
        times.append(median_ms(update, device, seconds=SECONDS))
    pairs = zip(*results, strict=True)
    return [*times, max(float((a - b).abs().max() / a.abs().max().clamp(1e-30)) for a, b in pairs)]


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for name, (backbone, _) in HEADS.items():
        net = build(name, device)
        count = sum(p.numel() for p in net.parameters())
        print(f"{backbone}, {name}, {count / 1e6:.1f} million parameters: torch, Triton, floor")
        for label, prepare, how, size in (
            ("LARS, mocov3", prepare_lars, "mocov3", LARS_BYTES),
            ("LARS, clipped", prepare_lars, "clipped", LARS_BYTES),
            ("teacher", prepare_teacher, "host", TEACHER_BYTES),
            ("teacher, device", prepare_teacher, "device", TEACHER_BYTES),
        ):
            by_torch, by_triton, difference = compare(prepare, net, how, device)
            floor = count * size / BANDWIDTH
            print(f"  {label:<15}{by_torch:8.3f}{by_triton:8.3f}{floor:8.3f}  {difference:.1e}")


if __name__ == "__main__":
    main()
