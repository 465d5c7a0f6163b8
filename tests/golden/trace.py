"""Three training steps of every method in float64, as numbers that must not change by accident.

Weights and sums are looked up by the names that parameters had when the traces were recorded;
RECORDED_NAMES translates today's. `traces.json` holds for every machine to rounding; `exact.json`
was recorded on one kind of processor and holds there to the last bit.
`python -m tests.golden.trace` adds what is not recorded yet, such as a new method; with the names
of cases it records these again, and a commit that does so says why they changed.
"""

import json
import platform
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from selfsight import rng
from selfsight.backbones import BackboneConfig
from selfsight.methods import BASELINES, METHODS, DataInfo
from selfsight.nn.combinatorial_patches import Patches
from selfsight.optim import OPTIMS, Optim, Schedule, build_optimizer
from selfsight.recipe import Recipe
from selfsight.train.grad_scaler import GradScaler
from selfsight.train.init_weights import build_method
from selfsight.train.loop import train
from selfsight.train.step import Batch
from selfsight.train.training_state import State
from selfsight.views import View
from tests.methods.small import SMALL

RECORDED = Path(__file__).with_name("traces.json")
EXACT = Path(__file__).with_name("exact.json")
# Today's name of a part of a state dict, and the one it had when the traces were recorded.
RECORDED_NAMES: dict[str, str] = {
    "memory_bank": "memory",
    "normalizer": "normaliser",
}
STEPS, BATCH, SIZE, IMAGES, CLASSES = 3, 8, 16, 40, 5
WARM = Schedule(warmup_epochs=0.5, warmup_start=0.5)
SGD = Optim(lr=3.0, schedule=WARM)

# A setting of each method, and others that take another way through its code.
CASES: dict[str, tuple[str, dict[str, Any], Optim]] = {
    **{name: (name, {}, SGD) for name in sorted(METHODS | BASELINES)},
    "byol, patches": ("byol", dict(heads="fast_moco", patches=Patches()), SGD),
    "fast_moco, montage": ("fast_moco", dict(patches=Patches(how="montage")), SGD),
    "fast_moco, three views": ("fast_moco", dict(multicrop=True), SGD),
    "instdisc, softmax": ("instdisc", dict(loss="softmax", proximal_lambda=3.0), SGD),
    "jcl, multi-key": ("jcl", dict(loss="multi_key"), SGD),
    "moco, both ways": ("moco", dict(symmetric=True), SGD),
    "moco, EqCo": ("moco", dict(queue_size=4, alpha=64.0), SGD),
    "mocov3, ViT's head": ("mocov3", dict(head="vit", temperature=0.2), SGD),
    "mocov3, no predictor": ("mocov3", dict(predictor=False, momentum_end=0.9), SGD),
    "mocov3, AdamW": ("mocov3", {}, replace(OPTIMS["adamw"], lr=0.1, schedule=WARM)),
    "mocov3, LARS": ("mocov3", {}, replace(OPTIMS["lars"], lr=90.0, schedule=WARM)),
    "mocov3, LAMB": ("mocov3", {}, replace(OPTIMS["lamb"], lr=1.0, schedule=WARM)),
    "msbreg, layer norm": ("msbreg", dict(norm="ln", singular="c", centroid="both"), SGD),
    "nnclr, teacher": ("nnclr", dict(teacher_momentum=0.9), SGD),
    "simclr, EqCo": ("simclr", dict(num_negatives=5, negatives="cross", alpha=64.0), SGD),
    "simo, both ways": ("simo", dict(symmetric=True, shared_negatives=False), SGD),
    "simsiam, clipped": ("simsiam", {}, replace(SGD, clip=0.1, predictor_lr="constant")),
    "swav, larc": ("swav", {}, replace(SGD, name="lars", variant="larc", lr=90.0)),
}


@cache
def numbers(name: str, rows: int, count: int) -> torch.Tensor:
    """Normal numbers that a name decides, equal on every machine."""
    index = torch.arange(rows)
    return rng.normal(rng.key(0, name), index, count)


def trace(case: str) -> dict[str, Any]:
    """The losses of a case, and a sum over each part of the method after the last step."""
    name, settings, optim = CASES[case]
    config = (METHODS | BASELINES)[name](**SMALL[name] | settings)
    recipe = Recipe(
        method=config,
        views=(View(size=SIZE),) * config.num_views,
        optim=optim,
        backbone=BackboneConfig(name="resnet8_narrow", image_size=SIZE),
        epochs=2,
        batch_size=BATCH,
    )
    device = torch.device("cpu")
    method = build_method(recipe, device, DataInfo(IMAGES, CLASSES)).double()
    settle(method)
    optimizer = build_optimizer(recipe.optim, method.named_parameters(), batch_size=BATCH)
    state = State(method, optimizer, GradScaler(device, enabled=False))
    per_epoch = IMAGES // BATCH
    batches = [batch(config, step) for step in range(STEPS)]
    losses = [
        step.loss.item()
        for _, step in train(state, batches, recipe, steps_per_epoch=per_epoch, device=device)
    ]
    sums: dict[str, float] = {}
    for key, value in method.state_dict().items():
        if value.is_floating_point():
            # Unequal weights: neither another order nor another direction leaves the sum alone.
            key = recorded_name(key)
            weighted = value.flatten() * numbers(key, 1, value.numel())[0]
            part = key.split(".")[0]
            sums[part] = sums.get(part, 0.0) + weighted.abs().sum().item()
    return {"losses": losses, "sums": sums}


def recorded_name(key: str) -> str:
    """The name that a tensor of the state dict had when the traces were recorded."""
    for new, old in RECORDED_NAMES.items():
        if key == new or key.startswith(f"{new}."):
            return old + key.removeprefix(new)
    return key


def processor() -> str:
    """What decides the last bit of a sum on a CPU: its vector instructions, its kind, and torch."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if platform.system() == "Linux" else []
    fields = [
        line.split(":", 1)[1].strip()
        for line in lines
        if ":" in line and line.startswith(("model", "cpu family"))
    ]
    capability = torch.backends.cpu.get_cpu_capability()
    return " ".join([torch.__version__, capability, *dict.fromkeys(fields)])


def settle(method: torch.nn.Module) -> None:
    """Weights from our own numbers: torch's normal ones differ in the last bit by processor."""
    for key, value in method.state_dict().items():
        if value.ndim > 1:
            name = recorded_name(key).replace("teacher.net.", "student.")
            rows = numbers(name, len(value), value[0].numel())
            value.copy_(F.normalize(rows, dim=1).view(value.shape))


def batch(config: Any, step: int) -> Batch:
    """Views of the same images, alike but not the same; the last ones of SwAV are small."""
    x = numbers(f"pictures {step}", BATCH, 3 * SIZE * SIZE)
    large = config.num_views - getattr(config, "num_small", 0)
    views = []
    for v in range(config.num_views):
        view = x + 0.3 * numbers(f"view {v} {step}", BATCH, x.shape[1])
        side = SIZE if v < large else SIZE // 2
        views.append(view.view(BATCH, 3, SIZE, SIZE)[..., :side, :side].contiguous())
    index = (torch.arange(BATCH) + step * BATCH) % IMAGES
    return Batch(views, index % CLASSES, index, 0.0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    recorded, exact = (json.loads(path.read_text()) for path in (RECORDED, EXACT))
    assert exact["recorded_on"] == processor(), "the last bits are of another processor"
    for case in sys.argv[1:] or CASES.keys() - recorded.keys():
        recorded[case] = exact["traces"][case] = trace(case)
    recorded, exact["traces"] = ({c: r[c] for c in CASES} for r in (recorded, exact["traces"]))
    RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")
    EXACT.write_text(json.dumps(exact, indent=1) + "\n")
