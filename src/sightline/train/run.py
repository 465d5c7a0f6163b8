"""Drive the loop: log, probe, save, measure. Ordinary control flow instead of callbacks."""

import torch
from rich.console import Console

from sightline import dist
from sightline.data import Pictures
from sightline.data.loader import Loader
from sightline.evals.knn import KNN
from sightline.methods import DataFacts, Method
from sightline.methods.base import UNKNOWN
from sightline.nn.chunks import chunked
from sightline.optim import build as build_optimizer
from sightline.optim import table
from sightline.recipe import Recipe
from sightline.runs import Run
from sightline.train import checkpoint
from sightline.train.guard import Guard
from sightline.train.loop import State, feed, train
from sightline.train.probe import Probe
from sightline.train.show import Bar, rows
from sightline.train.step import compiles
from sightline.train.watch import Watch


def build(recipe: Recipe, device: torch.device, data: DataFacts = UNKNOWN) -> Method:
    """The method with the weights that this recipe's seed gives, ready to train."""
    torch.manual_seed(recipe.seed)
    method = recipe.method.build(recipe.backbone.build(), data).to(device)
    if recipe.chunk is not None:
        chunked(method, recipe.chunk, compiled=compiles(recipe, device))
    # Convolutions run up to twice as fast in this layout, on the CPU too.
    return method.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]


def start(recipe: Recipe, run: Run, pictures: Pictures, device: torch.device) -> State:
    """Fresh state, or that of the run's last checkpoint."""
    classes = 0 if pictures.labels is None else int(pictures.labels.max()) + 1
    method = build(recipe, device, DataFacts(len(pictures), classes))
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


def loader_of(recipe: Recipe, pictures: Pictures, device: torch.device) -> Loader:
    """This process's part of the recipe's batches."""
    return Loader(
        pictures,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        rank=dist.rank(),
        world_size=dist.world_size(),
        device=device,
    )


def pretrain(
    recipe: Recipe,
    run: Run,
    pictures: Pictures,
    device: torch.device,
    *,
    knn: KNN | None,
    console: Console,
) -> State:
    """Train to the end from wherever the run stands; the folder is complete at every save."""
    loader = loader_of(recipe, pictures, device)
    per_epoch = loader.steps_per_epoch
    total = recipe.epochs * per_epoch
    watch = Watch(recipe, per_epoch)
    state = start(recipe, run, pictures, device)
    first = dist.rank() == 0
    if first:
        console.print(rows(table(state.optimizer), title="parameter groups"))
        run.keep_records(state.step)
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
                    record["knn"] = knn(state.method.student.backbone)["accuracy"]
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
