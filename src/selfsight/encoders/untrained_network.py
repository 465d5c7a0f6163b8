"""The untrained network that a result is compared with."""

import safetensors.torch
import torch
from torch import nn

from selfsight.backbones.last_blocks import LastBlocks
from selfsight.data import ImageStore, read_batches
from selfsight.encoders.load_encoder import EncoderUnderTest, feature_network
from selfsight.encoders.load_run_networks import find_checkpoint
from selfsight.evals.label_free import EPOCH
from selfsight.nn import Encoder
from selfsight.nn.batch_norm import track_statistics
from selfsight.nn.ema_teacher import reinitialized
from selfsight.recipe import Recipe
from selfsight.run_files.json_files import replace_file
from selfsight.run_files.run_folder import Run
from selfsight.train.init_weights import build_method, read_start
from selfsight.train.online_eval import sample_images
from selfsight.train.skipped_steps import STATISTICS
from selfsight.views import apply_views

UNTRAINED = "untrained"
UPDATES = 44  # of batch-norm statistics: 1 % of the initial ones is left
MAX_IMAGES = 64  # per update


def build_untrained_student(
    recipe: Recipe, images: ImageStore, device: torch.device, *, steps: int, run: Run
) -> Encoder:
    """Build a run's initial weights with the batch-norm statistics that its images give them.

    Training changes these statistics even at a learning rate of 0, and they alone can change kNN by
    several points: with the initial statistics, the comparison would overstate what was learned.
    They are saved for evaluations, which may not have these images. An imported initial encoder
    keeps its statistics, because it would be used with them.
    """
    student = build_method(recipe, device, start=read_start(run, recipe.start)).student
    if recipe.start.name or not any(
        name.endswith(STATISTICS) for name, _ in student.named_buffers()
    ):
        return student
    updates, batch = min(steps, UPDATES), min(recipe.batch_size, MAX_IMAGES)
    index = sample_images(images, updates * batch, recipe.seed)
    rows = torch.arange(updates * batch).view(updates, batch) % len(index)
    parts = ((EPOCH - i, index[rows[i]]) for i in range(updates))
    batches = read_batches(images, parts, device)
    views = (
        apply_views(recipe.views[:1], raw.images, raw.index, seed=recipe.seed, epoch=raw.epoch)[0]
        for raw in batches
    )
    track_statistics(nn.Sequential(student.backbone, student.projector), views)
    tracked = {k: v for k, v in student.state_dict().items() if k.endswith(STATISTICS)}
    with replace_file(run.untrained_statistics) as file:
        file.write(safetensors.torch.save(tracked))
    return student


def build_untrained(
    encoder: EncoderUnderTest, device: torch.device, source: str = "backbone"
) -> EncoderUnderTest:
    """Build the same network untrained: a run's initial weights, or newly sampled ones."""
    if encoder.recipe is None:
        torch.manual_seed(0)
        return encoder._replace(name=UNTRAINED, network=reinitialized(encoder.network), weights=())
    where = find_checkpoint(encoder.name)
    start = None if where is None else read_start(where.run, encoder.recipe.start)
    method = build_method(encoder.recipe, device, start=start)
    if where is not None and where.run.untrained_statistics.exists():
        tracked = safetensors.torch.load_file(where.run.untrained_statistics)
        method.student.load_state_dict(tracked, strict=False)
    network = feature_network(method.student, source)
    if isinstance(last := encoder.network, LastBlocks):
        network = LastBlocks(network, last.num_blocks, patch_mean=last.patch_mean)
    return encoder._replace(name=UNTRAINED, network=network, method=method)
