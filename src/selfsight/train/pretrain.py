"""Drive the loop: log, probe, save, measure. Ordinary control flow instead of callbacks."""

import torch
from rich.console import Console

from selfsight import dist
from selfsight.console import build_table
from selfsight.data import ImageStore
from selfsight.data.loader import Loader
from selfsight.evals.knn import KNN
from selfsight.methods import DataFacts, Method
from selfsight.methods.base import UNKNOWN
from selfsight.nn.chunked_encoder import chunked
from selfsight.optim import build_optimizer, describe_groups
from selfsight.recipe import Recipe
from selfsight.run_folder import Run
from selfsight.train import checkpoint
from selfsight.train.grad_scaler import Guard
from selfsight.train.loop import State, feed, train
from selfsight.train.metrics import Watch
from selfsight.train.online_eval import Probe
from selfsight.train.progress_bar import Bar
from selfsight.train.step import compiles


def build(recipe: Recipe, device: torch.device, data: DataFacts = UNKNOWN) -> Method:
    """The method with the weights that this recipe's seed gives, ready to train."""
    torch.manual_seed(recipe.seed)
    method = recipe.method.build(recipe.backbone.build(), data).to(device)
    if recipe.chunk is not None:
        chunked(method, recipe.chunk, compiled=compiles(recipe, device))
    # Convolutions run up to twice as fast in this layout, on the CPU too.
    return method.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]


def start(recipe: Recipe, run: Run, images: ImageStore, device: torch.device) -> State:
    """Fresh state, or that of the run's last checkpoint."""
    classes = 0 if images.labels is None else int(images.labels.max()) + 1
    method = build(recipe, device, DataFacts(len(images), classes))
    optimizer = build_optimizer(
        recipe.optim, method.named_parameters(), batch_size=recipe.batch_size
    )
    probe = None
    if classes:
        probe = Probe(method.student.backbone.dim, classes, device)
    guard = Guard(device, scaled=recipe.precision == "fp16")
    state = State(method, optimizer, guard, probe)
    saved = checkpoint.load(run, device)
    if saved is not None:
        state.load_state_dict(saved)
    return state


def loader_of(recipe: Recipe, images: ImageStore, device: torch.device) -> Loader:
    """This process's part of the recipe's batches."""
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
    """Train to the end from wherever the run stands; the folder is complete at every save."""
    loader = loader_of(recipe, images, device)
    per_epoch = loader.steps_per_epoch
    total = recipe.epochs * per_epoch
    watch = Watch(recipe, per_epoch)
    state = start(recipe, run, images, device)
    first = dist.rank() == 0
    if first:
        console.print(build_table(describe_groups(state.optimizer), title="parameter groups"))
        run.truncate_log(state.step)
    watch.restart()
    with Bar(console, total, state.step, shown=first) as bar:
        batches = feed(loader, recipe, state.step)
        for batch, step in train(state, batches, recipe, steps_per_epoch=per_epoch, device=device):
            if watch.first_step is None:
                bar.begin(watch.first(step))
            watch.see(batch)
            last = state.step == total
            ended = state.step // per_epoch if state.step % per_epoch == 0 else 0  # epochs
            measure = knn and (last or (ended and ended % recipe.measure_every == 0))
            if measure or last or state.step % recipe.log_every == 0:
                record = watch.record(state, step)
                if measure and knn and record:
                    record["online_knn"] = knn(state.method.student.backbone)["accuracy"]
                if first and record:
                    run.log(record)
                    bar.say(record)
                watch.restart()
            if last or (ended and ended % recipe.save_every == 0):
                if first:
                    checkpoint.save(run, state.state_dict())
                dist.barrier()
            bar.advance()
    return state
