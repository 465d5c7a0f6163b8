"""Drive the loop: log, save and evaluate, with plain control flow instead of callbacks."""

import torch
from rich.console import Console

from selfsight import dist
from selfsight.console import build_table
from selfsight.data import ImageStore
from selfsight.data.loader import Loader
from selfsight.evals.knn import KNN
from selfsight.methods import DataInfo, Method
from selfsight.methods.base import NO_DATA_INFO
from selfsight.nn.teacher import set_chunk_size
from selfsight.optim import build_optimizer, describe_groups
from selfsight.recipe import Recipe
from selfsight.run_folder import Run
from selfsight.train import checkpoint
from selfsight.train.grad_scaler import GradScaler
from selfsight.train.loop import load_batches, train
from selfsight.train.metrics import Metrics
from selfsight.train.online_eval import OnlineProbe
from selfsight.train.progress_bar import ProgressBar
from selfsight.train.state import State


def build_method(recipe: Recipe, device: torch.device, data: DataInfo = NO_DATA_INFO) -> Method:
    """Build the recipe's method with the initial weights of its seed, in training mode."""
    torch.manual_seed(recipe.seed)
    method = recipe.method.build(recipe.backbone.build(), data).to(device)
    if recipe.chunk is not None:
        set_chunk_size(method, recipe.chunk)
    # Convolutions run up to twice as fast in this layout, on the CPU too.
    return method.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]


def build_state(recipe: Recipe, run: Run, images: ImageStore, device: torch.device) -> State:
    """Build the initial state, or load that of the run's last checkpoint."""
    num_classes = 0 if images.labels is None else int(images.labels.max()) + 1
    method = build_method(recipe, device, DataInfo(len(images), num_classes))
    optimizer = build_optimizer(
        recipe.optim, method.named_parameters(), batch_size=recipe.batch_size
    )
    probe = None
    if num_classes:
        probe = OnlineProbe(method.student.backbone.dim, num_classes, device)
    scaler = GradScaler(device, enabled=recipe.precision == "fp16")
    state = State(method, optimizer, scaler, probe)
    saved = checkpoint.load(run, device)
    if saved is not None:
        state.load_state_dict(saved)
    return state


def build_loader(recipe: Recipe, images: ImageStore, device: torch.device) -> Loader:
    """Build the loader of this process's part of each batch."""
    return Loader(
        images,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        rank=dist.rank(),
        world_size=dist.world_size(),
        device=device,
    )


def pretrain(
    recipe: Recipe,
    run: Run,
    images: ImageStore,
    device: torch.device,
    *,
    knn: KNN | None,
    console: Console,
) -> State:
    """Train from the run's last checkpoint, if any, to the end; write log and checkpoints."""
    loader = build_loader(recipe, images, device)
    per_epoch = loader.steps_per_epoch
    total = recipe.epochs * per_epoch
    metrics = Metrics(recipe, per_epoch)
    state = build_state(recipe, run, images, device)
    is_main = dist.rank() == 0
    if is_main:
        console.print(build_table(describe_groups(state.optimizer), title="parameter groups"))
        run.truncate_log(state.step)
    metrics.restart()
    with ProgressBar(console, total, state.step, shown=is_main) as bar:
        batches = load_batches(loader, recipe, state.step)
        for batch, step in train(state, batches, recipe, steps_per_epoch=per_epoch, device=device):
            if metrics.first_step_seconds is None:
                bar.begin(metrics.first_step(step))
            metrics.count(batch)
            last = state.step == total
            epochs_done = state.step // per_epoch if state.step % per_epoch == 0 else 0
            evaluate = knn and (last or (epochs_done and epochs_done % recipe.measure_every == 0))
            if evaluate or last or state.step % recipe.log_every == 0:
                record = metrics.record(state, step)
                if evaluate and knn and record:
                    record["online_knn"] = knn(state.method.student.backbone)["accuracy"]
                if is_main and record:
                    run.log(record)
                    bar.update(record)
                metrics.restart()
            if is_main and epochs_done in recipe.keep_epochs:
                # Before the last one: a run that is killed in between repeats this epoch.
                checkpoint.keep(run, state.state_dict(), epochs_done)
            if last or (epochs_done and epochs_done % recipe.save_every == 0):
                if is_main:
                    checkpoint.save(run, state.state_dict())
                dist.barrier()
            bar.advance()
    return state
