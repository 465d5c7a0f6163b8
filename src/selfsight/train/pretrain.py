"""Drive the loop: log, save and evaluate, with plain control flow instead of callbacks."""

import time

import torch
from rich.console import Console

from selfsight import dist
from selfsight.command_hint import write_command
from selfsight.data import ImageStore
from selfsight.data.loader import Loader
from selfsight.errors import DivergedError, StoppedError, UserError
from selfsight.evals.knn import KNN
from selfsight.methods import DataInfo
from selfsight.optim import build_optimizer, describe_groups
from selfsight.recipe import Recipe
from selfsight.run_files.json_files import WriteError
from selfsight.run_files.run_folder import Run
from selfsight.stop_signals import signal_name
from selfsight.stopwatch import Stopwatch
from selfsight.terminal.console import build_table
from selfsight.train import checkpoint
from selfsight.train.alarms import Alarms
from selfsight.train.checkpoint_schedule import Saver
from selfsight.train.compile_ahead import CompileAhead
from selfsight.train.cuda_graph import CHOICE, can_record
from selfsight.train.grad_scaler import GradScaler
from selfsight.train.init_weights import Weights, build_method, read_start
from selfsight.train.log_records import MAX_RECORDS, Metrics, log_spacing
from selfsight.train.loop import load_batches, train
from selfsight.train.online_eval import OnlineProbe, count_dips
from selfsight.train.stop_on_signal import StopRequest
from selfsight.train.training_progress import ProgressBar
from selfsight.train.training_state import State


def build_new_state(
    recipe: Recipe, images: ImageStore, device: torch.device, *, start: Weights | None = None
) -> State:
    """Build the initial state of a recipe, from these weights of the backbone if they are given."""
    data = describe_data(images)
    method = build_method(recipe, device, data, start=start)
    optimizer = build_optimizer(
        recipe.optim,
        method.named_parameters(),
        batch_size=recipe.batch_size,
        backbone_lr=recipe.start.lr_factor,
    )
    probe = None
    if data.num_classes:
        probe = OnlineProbe(method.student.backbone.dim, data.num_classes, device)
    scaler = GradScaler(device, enabled=recipe.precision == "fp16")
    return State(method, optimizer, scaler, probe, settings=checkpoint.list_recorded(recipe))


def describe_data(images: ImageStore) -> DataInfo:
    """Return what a method may know about these images."""
    num_classes = 0 if images.labels is None else int(images.labels.max()) + 1
    return DataInfo(len(images), num_classes)


def count_classes(recipe: Recipe, images: ImageStore) -> int | None:
    """Number of classes that the method learns to distinguish; None if it uses no labels."""
    return describe_data(images).num_classes or None if recipe.method.needs_labels else None


def build_state(recipe: Recipe, run: Run, images: ImageStore, device: torch.device) -> State:
    """Build the initial state, or load that of the run's last checkpoint."""
    state = build_new_state(recipe, images, device, start=read_start(run, recipe.start))
    loaded = checkpoint.load_newest(run, device, use=state.load_state_dict)
    steps = dist.gather_objects(state.step)
    if len(set(steps)) > 1:
        raise UserError(
            f"The processes do not read the same checkpoint of {run.path}: they are at the steps "
            f"{', '.join(map(str, steps))}. Is the folder readable and up to date on every "
            "machine? Repeat the command."
        )
    if loaded is not None and dist.rank() == 0:
        checkpoint.set_aside(run, loaded)
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
    deadline: float | None = None,
    clock: Stopwatch | None = None,
    until: int | None = None,
    list_groups: bool = True,
    compile_ahead: bool = False,
) -> State:
    """Train from the run's last checkpoint, if any, to the end; write log and checkpoints.

    After `deadline`, a time of the monotonic clock, training stops with a checkpoint; several
    processes stop at the end of the epoch. With `until`, it stops after that step. Seconds are
    counted by `clock`. `list_groups` prints the parameter groups. With `compile_ahead`, the first
    run of a network begins with uncompiled steps while another process compiles.
    """
    clock = Stopwatch() if clock is None else clock
    loader = build_loader(recipe, images, device)
    per_epoch = loader.steps_per_epoch
    total = recipe.epochs * per_epoch
    metrics, log_every = Metrics(recipe, per_epoch), log_spacing(recipe, total)
    state = build_state(recipe, run, images, device)
    is_main = dist.rank() == 0
    if is_main:
        if list_groups:
            console.print(build_table(describe_groups(state.optimizer), title="parameter groups"))
        if log_every > recipe.log_every:
            console.print(
                f"The log gets a record every {log_every} steps, not every {recipe.log_every}: at "
                f"most {MAX_RECORDS:,} in all."
            )
        run.truncate_log(state.step)
        metrics.resume_time(run.logged_seconds())
    accuracies = [r["online_knn"] for r in run.records() if "online_knn" in r] if is_main else []
    metrics.restart()
    saver, out_of_time, calls = Saver(run, recipe, per_epoch, state.step), False, 0
    alarms = None
    if is_main:
        classes = count_classes(recipe, images)
        alarms = Alarms(run, recipe, saver, console, past=run.records(), classes=classes)
    ahead = CompileAhead(recipe, describe_data(images), device) if compile_ahead else None
    steps = train(
        state,
        load_batches(loader, recipe, state.step),
        recipe,
        steps_per_epoch=per_epoch,
        device=device,
        ahead=ahead,
    )
    try:
        with ProgressBar(console, total, state.step, shown=is_main) as bar, StopRequest() as stop:
            for batch, step in steps:
                calls += 1
                if metrics.first_step_seconds is None:
                    bar.begin(metrics.first_step(step))
                    clock.lap("compile")
                if ahead is not None and ahead.step == state.step - 1:
                    float(step.loss)  # waits for the device
                    clock.lap("compile")
                    console.print(ahead.describe(), soft_wrap=True)
                    ahead.note_compiled()
                    calls = 1
                clock.lap("graph" if can_record(recipe, device) and calls <= CHOICE else "steps")
                metrics.count(batch)
                last = state.step == total
                epochs_done = state.step // per_epoch if state.step % per_epoch == 0 else 0
                measure = last or (epochs_done and epochs_done % recipe.measure_every == 0)
                if (measure and knn) or last or state.step % log_every == 0:
                    record = metrics.record(state, step)
                    if measure and knn and record:
                        clock.lap("steps")
                        accuracies.append(knn(state.method.student.backbone)["accuracy"])
                        clock.lap("evaluation")
                        record["online_knn"] = accuracies[-1]
                        record["online_knn_dips"] = count_dips(accuracies)
                    if record and ahead is not None and ahead.step is not None:
                        record["compiled_from_step"] = ahead.step
                    if record and not int(state.scaler.skipped_in_a_row):
                        saver.finite_step = state.step
                    if alarms is not None:
                        alarms.check(state, record)
                    if is_main and record:
                        run.log(record)
                        bar.update(record)
                    metrics.restart()
                if is_main and epochs_done in recipe.keep_epochs:
                    # Before the last one: a run that is killed in between repeats this epoch.
                    checkpoint.keep(run, state.state_dict(), epochs_done)
                request = stop.agree(save=saver.is_late(), now=last)
                out_of_time = out_of_time or _is_past(
                    deadline, device, epoch_ended=bool(epochs_done)
                )
                ends = last or bool(request.signal_number)
                asked = request.save and not saver.was_saved_before(state.step)
                if saver.is_due(state.step) or ends or asked or out_of_time:
                    clock.lap("steps")
                    saver.save(state, step, wait=not ends)
                    clock.lap("saving")
                if request.signal_number:
                    raise StoppedError(
                        f"Stopped by {signal_name(request.signal_number)} at step {state.step} of "
                        f"{total}. {saver.describe_kept()} Resume with: "
                        f"{write_command('resume', run)}",
                        request.signal_number,
                    )
                bar.advance()
                if out_of_time and not saver.due:  # due: a skipped step cannot be saved
                    break
                if state.step == until:
                    break
    except DivergedError as error:
        if alarms is not None:  # before the last checkpoint is set aside
            alarms.record_divergence(state, str(error))
        kept = saver.set_diverged_aside()
        where = f"See where it began: {write_command('replay', run)}"
        raise DivergedError(f"{error} {kept} {where}") from error
    except WriteError as error:
        advice = "Start the run again."
        if run.recipe_path.exists():
            resume = write_command("resume", run)
            advice = f"When the folder can be written again, resume with: {resume}"
        raise WriteError(f"{error} {saver.describe_kept()} {advice}") from error
    finally:
        if ahead is not None:
            ahead.close()
    return state


def _is_past(deadline: float | None, device: torch.device, *, epoch_ended: bool) -> bool:
    """Whether the deadline has passed; several processes agree on it only at the end of an epoch.

    All of them stop at the same step, and to ask each other takes time.
    """
    if deadline is None:
        return False
    past = time.monotonic() > deadline
    if dist.world_size() == 1:
        return past
    return epoch_ended and bool(dist.all_sum(torch.tensor(int(past), device=device)))
