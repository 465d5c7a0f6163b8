"""Recipes shrunk so far that a test can train two steps of each."""

from dataclasses import fields, replace
from functools import cache
from itertools import islice

import torch
from torch import nn

from selfsight.backbones.vit import ViT
from selfsight.data import CachedImages
from selfsight.data.loader import Loader
from selfsight.errors import UserError
from selfsight.nn import Backbone
from selfsight.recipe import Data, Recipe, to_dict
from selfsight.run_files.run_folder import Run
from selfsight.train.loop import load_batches, train
from selfsight.train.pretrain import build_state
from selfsight.train.step import Batch
from selfsight.views import View

# Upper bounds of a method's sizes in a shrunk recipe.
LIMITS = {
    "dim": 16,
    "hidden_dim": 32,
    "predictor_dim": 16,
    "queue_size": 16,
    "num_prototypes": 8,
    "num_noise": 16,
    "num_negatives": 4,
    "bn_group": 4,
}
BATCH, NUM_IMAGES, NUM_CLASSES = 8, 32, 4


class TinyResNet(Backbone):
    """Stand in for every ResNet: a stem and two stages of one convolution and norm each."""

    dim = 16

    def __init__(self, in_channels, image_size):
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())
            for i, o in ((in_channels, 8), (8, 16), (16, self.dim))
        )

    def forward_to_stage(self, x, stage):
        """Return the feature maps after a stage; 0 is the stem."""
        for layer in self.stages[: stage + 1]:
            x = layer(x)
        return x

    def forward_from_stage(self, x, stage):
        """Return the features from the maps after a stage."""
        for layer in self.stages[stage + 1 :]:
            x = layer(x)
        return x.mean((2, 3))

    def forward(self, x):
        """Return one feature vector per image."""
        return self.forward_from_stage(self.forward_to_stage(x, 0), 0)


def tiny_vit(**shape):
    """Stand in for every ViT."""
    return ViT(24, 1, 3, patch=8, **shape)


def tiny_vit_bn(**shape):
    """Stand in for every ViT with batch norm in its MLP blocks."""
    return ViT(24, 1, 3, patch=8, mlp_norm="bn", **shape)


def shrink(recipe: Recipe) -> Recipe:
    """Copy a recipe with a tiny network, narrow heads, small views and a small batch."""
    try:
        return _shrink_to(recipe, 32)
    except UserError:  # a view is divided in three
        return _shrink_to(recipe, 48)


def _shrink_to(recipe: Recipe, large: int) -> Recipe:
    width = max(view.size for view in recipe.views)
    views = [replace(v, size=large if v.size == width else large // 2) for v in recipe.views]
    name, backbone = recipe.backbone.name, recipe.backbone
    if name.startswith("vit_"):
        kind = "tiny_vit_bn" if name.startswith("vit_bn_") else "tiny_vit"
        backbone = replace(backbone, name=f"{__name__}:{kind}", image_size=large)
    else:
        backbone = replace(backbone, name=f"{__name__}:TinyResNet", stem="auto", image_size=large)
    method = recipe.method
    limited = {f.name: getattr(method, f.name) for f in fields(method) if f.name in LIMITS}
    method = replace(method, **{k: v and min(v, LIMITS[k]) for k, v in limited.items()})
    return replace(
        recipe,
        method=method,
        views=tuple(views),
        backbone=backbone,
        data=Data(path="made", store_size=large),
        batch_size=BATCH,
        precision="float32",
        compile=False,
    )


def structure(recipe: Recipe) -> str:
    """Describe which code a recipe runs: all of its settings but the values of numbers."""

    def without_numbers(value):
        if isinstance(value, dict):
            return {k: without_numbers(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [without_numbers(v) for v in value]
        return value != 0 if type(value) in (int, float) else value

    # Views, optimizers and networks are tested elsewhere, and one more view runs the same code.
    sizes = sorted({view.size for view in recipe.views})
    return str([without_numbers(to_dict(recipe)["method"]), sizes])


def images() -> CachedImages:
    """Create images of noise, with labels."""
    g = torch.Generator().manual_seed(0)
    side = torch.full((NUM_IMAGES,), 40)
    flat = torch.randint(0, 256, (NUM_IMAGES * 3 * 40 * 40,), generator=g, dtype=torch.uint8)
    return CachedImages(
        flat,
        side,
        side,
        channels=3,
        names=[str(i) for i in range(NUM_IMAGES)],
        labels=torch.arange(NUM_IMAGES) % NUM_CLASSES,
        class_names=tuple("abcd"),
    )


BATCHES: dict[tuple[View, ...], list[Batch]] = {}  # two, by their views: most recipes share them
STORED = cache(images)


def train_two_steps(recipe: Recipe, folder):
    """Train two steps with the training loop on plain crops; return the state and the losses."""
    plain = {"jitter_p": 0.0, "gray": 0.0, "blur": 0.0, "solarize": 0.0}
    recipe = replace(recipe, views=tuple(View(size=view.size, **plain) for view in recipe.views))
    device = torch.device("cpu")
    if recipe.views not in BATCHES:
        loader = Loader(STORED(), batch_size=BATCH, seed=0, rank=0, world_size=1, device=device)
        BATCHES[recipe.views] = list(islice(load_batches(loader, recipe, 0), 2))
    state = build_state(recipe, Run(folder), STORED(), device)
    steps = train(
        state,
        BATCHES[recipe.views],
        recipe,
        steps_per_epoch=NUM_IMAGES // BATCH,
        device=device,
    )
    return state, [step.loss for _, step in steps]
