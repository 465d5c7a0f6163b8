"""One, two and four processes train alike in float64: every method, through the training loop.

`make check` takes three steps of each method and of some variants, each step with another number of
processes; with SELFSIGHT_FUZZ=full it takes ten of all. `python -m tests.dist.test_training`
prints the table of docs/reliability.md.
"""

import dataclasses
import itertools
import math
import os

import numpy as np
import pytest
import torch
from torch import nn

from selfsight import dist
from selfsight.backbones import BackboneConfig
from selfsight.data import CachedImages
from selfsight.methods import BASELINES, METHODS, DataInfo
from selfsight.nn import Backbone
from selfsight.nn.combinatorial_patches import Patches
from selfsight.optim import OPTIMS, Schedule, build_optimizer
from selfsight.recipe import Recipe
from selfsight.train.grad_scaler import GradScaler
from selfsight.train.loop import load_batches, train
from selfsight.train.online_eval import OnlineProbe
from selfsight.train.pretrain import build_loader
from selfsight.train.training_state import State
from selfsight.views import View
from tests.dist.processes import Processes
from tests.methods.small import SMALL, Tiny

FULL = os.environ.get("SELFSIGHT_FUZZ") == "full"
TEN, THREE = (4, 7, 10), (1, 2, 3)  # by two processes until the first, by one, and by four
TOLERANCE = 1e-10
BATCH, IMAGES, CLASSES = 8, 44, 5  # 44 images: four are left over in each epoch of five steps
CPU = torch.device("cpu")

QUICK = [(name, {}) for name in sorted(METHODS | BASELINES)] + [
    ("barlow_twins", {"dim": 2 * BATCH}),  # from this width on the loss multiplies images
    ("fast_moco", {"patches": Patches(how="montage")}),
    ("moco", {"bn": "shuffle", "bn_group": 8}),
    ("swav", {"queue_size": 18, "queue_epoch": 1, "freeze_steps": 3, "num_small": 2}),
]
CASES = [
    *QUICK,
    ("byol", {"optim": "lars"}),
    # Small groups amplify rounding: a change of the weights by 1e-12 grows 300,000 times in ten
    # steps with groups of 4, 90 times with groups of 8, 3 times without groups.
    ("fast_moco", {"bn": "split", "bn_group": 8, "batch_size": 32}),
    ("instdisc", {"loss": "softmax", "proximal_lambda": 3.0}),
    ("jcl", {"bn": "split", "bn_group": 2}),
    ("jcl", {"bn": "shuffle", "bn_group": 8, "loss": "multi_key"}),
    ("lejepa", {"num_large": 4, "num_small": 0}),
    ("moco", {"bn": "sync"}),
    ("moco", {"bn": "split", "bn_group": 2}),
    ("moco", {"queue_size": 3, "alpha": 64.0}),
    ("moco", {"queue_size": 26, "symmetric": True}),
    ("mocov3", {"norm": "ws"}),
    ("msbreg", {"num_views": 4, "centroid": "both", "uniformity_weight": 0.5}),
    ("nnclr", {"queue_size": 11}),
    ("nnclr", {"patches": Patches()}),
    ("simclr", {"num_negatives": 5}),
    ("simo", {"bn": "shuffle", "bn_group": 8, "batch_size": 16, "symmetric": True}),
    ("simsiam", {"patches": Patches()}),
    ("swav", {"queue_size": 0, "num_small": 2}),
    ("vicreg", {"dim": 2 * BATCH}),
]


def recipe_of(name, settings):
    optim = OPTIMS[settings.get("optim", "sgd")]
    batch_size = settings.get("batch_size", BATCH)
    settings = {k: v for k, v in settings.items() if k not in ("optim", "batch_size")}
    lr = 0.02 if name == "vicreg" else 0.2  # with which it would diverge
    config = (METHODS | BASELINES)[name](**SMALL[name] | settings)
    large, small = (
        View(size=size, scale=scale, jitter_p=0.0, gray=0.0, blur=0.0)
        for size, scale in ((16, (0.4, 1.0)), (8, (0.1, 0.4)))
    )
    num_small = getattr(config, "num_small", 0)
    return Recipe(
        method=config,
        views=(large,) * (config.num_views - num_small) + (small,) * num_small,
        optim=dataclasses.replace(optim, lr=lr, scale="none", schedule=Schedule(warmup_epochs=1)),
        backbone=BackboneConfig(name="resnet8_narrow", image_size=16),
        epochs=-(-TEN[-1] // (count_images(batch_size) // batch_size)),
        batch_size=batch_size,
        seed=3,
    )


def count_images(batch_size):
    return max(IMAGES, 2 * batch_size + 4)  # two batches at least


def some_images(count):
    g = np.random.default_rng(0)
    flat = torch.from_numpy(g.integers(0, 256, count * 3 * 18 * 20, dtype=np.uint8))
    sides = [torch.full((count,), side) for side in (18, 20)]
    labels = torch.arange(count) % CLASSES
    names = [str(i) for i in range(count)]
    return CachedImages(flat, *sides, channels=3, names=names, labels=labels)


class Stages(Backbone):
    """A backbone with a last map, for patches to be cut from."""

    dim = 8

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8))

    def forward(self, x):
        return self.forward_to_stage(x, 4).mean((2, 3))

    def forward_to_stage(self, x, stage):
        return self.net(x).relu()


def build_state(recipe):
    torch.manual_seed(recipe.seed)
    info = DataInfo(num_images=count_images(recipe.batch_size), num_classes=CLASSES)
    patches = getattr(recipe.method, "patches", None)
    backbone = Stages() if patches and patches.needs_stages else Tiny()
    method = recipe.method.build(backbone, info).double().train()
    optimizer = build_optimizer(
        recipe.optim, method.named_parameters(), batch_size=recipe.batch_size
    )
    probe = OnlineProbe(backbone.dim, CLASSES, CPU)
    probe.layer.double()
    return State(method, optimizer, GradScaler(CPU, enabled=False), probe)


def trained(name, settings, save, saved=None):
    """The states after these steps, with the losses so far, as checkpoints have them."""
    recipe = recipe_of(name, settings)
    state = build_state(recipe)
    losses = []
    if saved is not None:
        state.load_state_dict(copied(saved))  # the processes of a group share its memory
        losses.append(saved["losses"])
    loader = build_loader(recipe, some_images(count_images(recipe.batch_size)), CPU)
    batches = (
        batch._replace(views=[view.double() for view in batch.views])
        for batch in load_batches(loader, recipe, state.step)
    )
    steps = train(state, batches, recipe, steps_per_epoch=loader.steps_per_epoch, device=CPU)
    states = {}
    for _, step in itertools.islice(steps, max(save) - state.step):
        losses.append(dist.mean(step.loss)[None])
        if state.step in save:
            states[state.step] = copied(state.state_dict()) | {"losses": torch.cat(losses)}
    return states


def copied(value):
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [copied(each) for each in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


def largest_difference(a, b):
    """Over every number of two checkpoints; infinite if they differ in anything else.

    Of a tensor with a number above 1 the difference is relative to the largest.
    """
    if isinstance(a, torch.Tensor):
        a, b = a.double(), b.double()
        if not a.numel() or not a.isfinite().all():
            return math.inf if a.numel() else 0.0
        return float((a - b).abs().max() / a.abs().max().clamp(min=1))
    if isinstance(a, dict) and a.keys() == b.keys():
        return max((largest_difference(a[key], b[key]) for key in a), default=0.0)
    if isinstance(a, list) and len(a) == len(b):
        return max(map(largest_difference, a, b), default=0.0)
    return 0.0 if a == b else math.inf


def differences(name, settings, two, four, saves, *, resumed_only):
    """From one process: of two, of four, and of a run by two that one and then four resume."""
    first, second, last = saves
    alone = trained(name, settings, [last])[last]
    results = {}
    if not resumed_only:
        states = four(trained, name, settings, [last])
        results["4"] = max(largest_difference(alone, each[last]) for each in states)
    states = two(trained, name, settings, [first] if resumed_only else [first, last])
    if not resumed_only:
        results["2"] = max(largest_difference(alone, each[last]) for each in states)
    state = trained(name, settings, [second], states[1][first])[second]
    states = four(trained, name, settings, [last], state)
    results["resumed"] = max(largest_difference(alone, each[last]) for each in states)
    return results


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), CASES if FULL else QUICK, ids=str)
def test_one_two_and_four_processes_are_equal(two_processes, four_processes, name, settings):
    groups, saves = (two_processes, four_processes), TEN if FULL else THREE
    found = differences(name, settings, *groups, saves, resumed_only=not FULL)
    assert max(found.values()) <= TOLERANCE, found


def describe(settings):
    texts = (
        f"{key}.how {value.how}" if isinstance(value, Patches) else f"{key} {value}"
        for key, value in settings.items()
    )
    return ", ".join(texts)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("| method | settings | 2 processes | 4 processes | 2, then 1, then 4 |")
    print("|---|---|---|---|---|")
    with Processes(2) as two, Processes(4) as four:
        for name, settings in CASES:
            found = differences(name, settings, two, four, TEN, resumed_only=False)
            numbers = " | ".join(f"{found[kind]:.0e}" for kind in ("2", "4", "resumed"))
            print(f"| {name} | {describe(settings)} | {numbers} |", flush=True)
