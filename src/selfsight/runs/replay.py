"""Repeat a run up to a step, uncompiled, and find where a non-finite value comes from."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from selfsight.errors import UserError, list_first
from selfsight.recipe import Recipe
from selfsight.run_files.run_folder import Run
from selfsight.runs.open_run_images import open_run_images
from selfsight.terminal.progress import DelayedProgress
from selfsight.train import checkpoint
from selfsight.train.cuda_graph import StepRunner
from selfsight.train.cudnn_and_determinism import configure_torch
from selfsight.train.init_weights import read_start
from selfsight.train.loop import load_batches
from selfsight.train.pretrain import build_loader, build_new_state
from selfsight.train.step import Batch, compute_views
from selfsight.train.trace_non_finite import Fault, FiniteWatch
from selfsight.train.training_state import State

WRONG = ("skipped", "diverged")  # events that can be replayed
NAMED = (checkpoint.LAST, checkpoint.PREVIOUS, checkpoint.BEFORE_SKIPPED, checkpoint.DIVERGED)
SHOWN = 8  # names of images in a sentence


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What a replay found."""

    run: str
    step: int
    checkpoint: str | None
    """File that the replay began from; None for the initial weights."""
    checkpoint_step: int
    finite: bool
    skipped: bool
    loss: float
    phase: str | None
    """views, forward, loss, backward or optimizer: where the first non-finite value appeared."""
    module: str | None
    """The first module with a non-finite output (forward) or gradient (backward)."""
    kind: str
    operation: str
    place: str
    parameters: tuple[str, ...]
    """Parameters whose gradient is not finite, or whose value is not."""
    images: tuple[str, ...]
    """Names of the images of the batch."""
    affected: tuple[str, ...]
    """Those among them that have a non-finite value in that module; empty if it is all."""
    sentence: str


def replay_run(
    run: Run,
    recipe: Recipe,
    device: torch.device,
    console: Console,
    *,
    step: int | None,
    trust: bool = False,
) -> Replay:
    """Repeat the run from the nearest checkpoint to a step, and watch that step.

    The default step is the last one that failed according to the run's events.
    """
    is_given, step = step is not None, _last_wrong_step(run) if step is None else step
    recipe = replace(recipe, compile=False)
    images = open_run_images(run, recipe, device, trust=trust)
    loader = build_loader(recipe, images, device)
    total = recipe.epochs * loader.steps_per_epoch
    if not 1 <= step <= total:
        raise UserError(f"--step is {step}, and the steps of {run.path} are 1 to {total}.")
    start, path = read_start(run, recipe.start), _find_checkpoint(run, step)
    state = build_new_state(recipe, images, device, start=start)
    if path is not None:
        checkpoint.load_file(run, path, device, use=state.load_state_dict)
    begin = state.step
    where = "the initial weights" if path is None else f"{path.name} (step {begin})"
    console.print(
        f"Replaying {step - begin} steps from {where}, uncompiled, on one process.",
    )
    configure_torch(recipe, device)
    per_epoch = loader.steps_per_epoch
    run_step = StepRunner(state, recipe, steps_per_epoch=per_epoch, device=device, record=False)
    batches = load_batches(loader, recipe, begin)
    with DelayedProgress("replay", step - begin) as bar:
        for _ in range(step - begin - 1):
            run_step(next(batches))
            bar.advance()
    batch, loss, fault = _watch(run_step, next(batches), recipe, per_epoch)
    if fault is None and not is_given and step < total:
        # The non-finite value was measured after that step, with the weights of the next.
        batch, loss, fault = _watch(run_step, next(batches), recipe, per_epoch)
    names = [str(images.names[i]) for i in batch.index.tolist()]
    return Replay(
        run=str(run.path),
        step=state.step,
        checkpoint=None if path is None else path.name,
        checkpoint_step=begin,
        finite=fault is None,
        skipped=bool(state.scaler.found_inf),
        loss=loss,
        phase=fault and fault.phase,
        module=fault and fault.module,
        kind=fault.kind if fault else "",
        operation=fault.operation if fault else "",
        place=fault.place if fault else "",
        parameters=fault.parameters if fault else (),
        images=tuple(names),
        affected=tuple(names[row] for row in _image_rows(fault, recipe)),
        sentence=_describe(fault, state, recipe, loss),
    )


def _watch(
    run_step: StepRunner, batch: Batch, recipe: Recipe, steps_per_epoch: int
) -> tuple[Batch, float, Fault | None]:
    """Run one step and watch it; also return the batch with its views, and the loss."""
    state = run_step.state
    if batch.images is not None:  # on the device; views that are given can be checked
        views = compute_views(recipe, batch.images, batch.index, state.step // steps_per_epoch)
        batch = batch._replace(views=views, images=None)
    with FiniteWatch(state.method) as watch:
        result = run_step(batch)
    return batch, float(result.loss), watch.find(batch.views, result.loss, len(batch.index))


def _last_wrong_step(run: Run) -> int:
    steps = [event["step"] for event in run.events() if event["event"] in WRONG]
    if not steps:
        raise UserError(
            f"{run.path} has no record of a step that went wrong. Give the step to look at with "
            "--step."
        )
    return steps[-1]


def _find_checkpoint(run: Run, step: int) -> Path | None:
    """Find the newest checkpoint before a step; None if there is none."""
    files = [run.checkpoints / name for name in NAMED]
    files += [run.kept_checkpoint(epoch) for epoch in run.kept_epochs]
    steps = {path: checkpoint.read_step(path) for path in files if path.is_file()}
    usable = {path: saved for path, saved in steps.items() if saved is not None and saved < step}
    return max(usable, key=lambda path: usable[path], default=None)


def _image_rows(fault: Fault | None, recipe: Recipe) -> tuple[int, ...]:
    """Rows of a fault, if they are in the order of the batch."""
    if fault is None or (recipe.method.bn == "shuffle" and "teacher" in (fault.module or "")):
        return ()
    return fault.rows


def _describe(fault: Fault | None, state: State, recipe: Recipe, loss: float) -> str:
    step = state.step
    if fault is None:
        named = [(n, p) for n, p in state.method.named_parameters() if p.grad is not None]
        weight = max(named, key=lambda item: float(item[1].detach().abs().max()))
        grad = max(named, key=lambda item: float(_gradient(item[1]).abs().max()))
        return (
            f"Step {step} is finite: the loss is {loss:.6g}, the largest gradient "
            f"{float(_gradient(grad[1]).abs().max()):.3g} ({grad[0]}), and the largest weight "
            f"after it {float(weight[1].detach().abs().max()):.3g} ({weight[0]})."
        )
    where = f"{fault.module} ({fault.kind})" if fault.module else "the loss"
    code = ", ".join(word for word in (fault.operation, fault.place) if word)
    code = f": {code}" if code else ""
    if fault.phase == "views":
        return f"Step {step}: a view is not finite before the network sees it."
    if fault.phase == "optimizer":
        return (
            f"Step {step}: loss and gradients are finite, and these weights are not after the "
            f"optimizer: {list_first(fault.parameters)}."
        )
    if fault.phase == "backward":
        scaled = (
            " The gradient is scaled in fp16; now and then this is normal."
            if recipe.precision == "fp16"
            else ""
        )
        return (
            f"Step {step}: the loss is {loss:.6g}, and the first gradient that is not finite is "
            f"that of {where}{code}.{scaled}"
        )
    if fault.module is None:
        return f"Step {step}: all modules are finite, and the loss is not{code}."
    return f"Step {step}: the first module whose output is not finite is {where}{code}."


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def describe_images(found: Replay) -> str:
    """Name the images of the batch, or those that have a non-finite value."""
    if found.affected:
        return (
            f"{len(found.affected)} of {len(found.images)} images have a non-finite value there: "
            f"{list_first(found.affected, SHOWN)}."
        )
    return f"The {len(found.images)} images of the batch: {list_first(found.images, SHOWN)}."
