"""Run folders with random weights, which no training had to write."""

import numpy as np
import torch
from PIL import Image
from torch import nn

from selfsight.backbones import BackboneConfig
from selfsight.methods.simsiam import SimSiamConfig
from selfsight.nn.batch_norm import BatchNorm
from selfsight.optim.optim_settings import Optim
from selfsight.recipe import Data, Recipe, to_dict
from selfsight.run_files.json_files import write_json
from selfsight.run_files.run_folder import Run
from selfsight.train import checkpoint
from selfsight.train.pretrain import build_state
from selfsight.views import View
from tests.recipes.small import images


def shake(network: nn.Module) -> nn.Module:
    """Give every norm its own statistics, weights and biases, so that none can be confused."""
    for module in network.modules():
        if isinstance(module, BatchNorm | nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 2)
        if isinstance(module, BatchNorm | nn.BatchNorm2d | nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.1)
    return network.eval()


def save_run(folder, *, channels: int = 3, **backbone) -> Run:
    """Write a run of SimSiam with this backbone, as it would be after training."""
    config = BackboneConfig(in_channels=channels, **backbone).resolved()
    statistics = {}  # ImageNet's
    if channels != 3:
        statistics = {"mean": (0.5,) * channels, "std": (0.25,) * channels}
    recipe = Recipe(
        method=SimSiamConfig(dim=16, hidden_dim=16),
        backbone=config,
        views=(View(size=config.image_size, **statistics),) * 2,
        data=Data(path="photos", channels=channels, store_size=config.image_size),
        epochs=2,
        batch_size=8,
        optim=Optim(lr=0.1),
    )
    run = Run(folder)
    write_json(run.recipe_path, to_dict(recipe) | {"images": 24})
    state = build_state(recipe, run, images(), torch.device("cpu"))
    shake(state.method.student.backbone)
    state.step = 6
    checkpoint.save(run, state.state_dict())
    return run


def save_photo(path, size=(302, 226), seed=0) -> None:
    """Write an image with edges and noise."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (8, 11, 3))
    large = np.asarray(Image.fromarray(blocks.astype(np.uint8)).resize(size, Image.Resampling.BOX))
    noisy = np.clip(large + rng.normal(0, 12, large.shape), 0, 255)
    Image.fromarray(noisy.astype(np.uint8)).save(path, quality=95)
