"""Train the missing arms of a study, one after another in one process."""

import gc
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from selfsight import dist
from selfsight.backbones.flops import multiply_adds
from selfsight.data import Source
from selfsight.data.loader import check_batch_size
from selfsight.errors import DivergedError, StoppedError
from selfsight.evals.extract_features import Features
from selfsight.evals.knn import KNN
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.linear_lbfgs import LinearProbe
from selfsight.recipe import Data, Recipe, eval_transform, to_dict
from selfsight.run_files.json_files import read_json, to_json, write_json
from selfsight.run_files.run_folder import Run
from selfsight.runs.environment import describe_version, device_name
from selfsight.runs.new_run_folder import set_old_run_aside
from selfsight.runs.run_lock import lock_run
from selfsight.stopwatch import Stopwatch
from selfsight.studies.ledger import RESULTS, Entry, hash_recipe
from selfsight.studies.measure_label_free import LabelFree, measure_label_free
from selfsight.studies.plan_jobs import Job, StudyData, decode_transfer, open_study_data
from selfsight.train.checkpoint import LAST
from selfsight.train.online_eval import build_online_knn
from selfsight.train.pretrain import pretrain
from selfsight.train.training_progress import format_duration

SECONDS = "seconds.json"  # of training so far, in the run folder
ENTRY = "entry.json"  # in the run folder, once the entry is in the ledger
CURVE_POINTS = 20  # measurements of online_knn during a run, unless its arm asks for more
CURVE = (
    *("epoch", "time", "loss", "online_knn", "online_knn_dips"),
    *("effective_rank", "information_bound"),
)
UNKNOWN_SPEED = {"cuda": 40_000.0, "cpu": 100.0}  # views per second, before anything is measured
Results = dict[str, dict[str, Any]]
EVALUATION_SECONDS = 20.0  # kept free for it, before anything is measured


def estimate_seconds(recipe: Recipe, entries: Sequence[Entry], device: str, images: int) -> float:
    """Estimate how long an arm takes by the most similar entry of this device.

    Another network takes as much longer as it has more multiplications. Runs that shared the GPU
    took several times as long, and count only if there are no others.
    """
    views = len(recipe.views)
    work: float = recipe.epochs * images * views

    def likeness(entry: Entry) -> tuple[bool, ...]:
        trained = entry.recipe
        return (
            entry.recipe_hash == hash_recipe(recipe),
            entry.network == recipe.backbone.name,
            trained["method"]["name"] == to_dict(recipe)["method"]["name"],
            len(trained["views"]) == views,
            trained["batch_size"] == recipe.batch_size,
        )

    usable = [e for e in entries if e.device == device and e.trained and not e.diverged]
    if not usable:
        speed = UNKNOWN_SPEED["cpu" if device == "CPU" else "cuda"]
        return work / speed + EVALUATION_SECONDS
    nearest = max([e for e in usable if not e.shared_gpu] or usable, key=likeness)
    assert nearest.trained is not None
    done = nearest.epochs * nearest.images["train"] * len(nearest.trained.views)
    if nearest.trained.backbone != recipe.backbone:
        work *= multiply_adds(recipe.backbone) / multiply_adds(nearest.trained.backbone)
    seconds = nearest.seconds
    rest = seconds["first_step"] + seconds["evaluate"]
    return seconds["train"] * work / done + rest


def find_turn(job: Job, work: Path) -> float:
    """Sort key of arms that are trained again: what was interrupted, and last the newest run."""
    run = job.run_folder(work)
    if (run.path / ENTRY).exists():
        return (run.path / ENTRY).stat().st_mtime
    return -1.0 if (run.checkpoints / LAST).exists() else 0.0


def run_jobs(
    jobs: Sequence[Job],
    device: torch.device,
    console: Console,
    *,
    data: str,
    transfer: dict[str, tuple[Source, Source]],
    entries: Sequence[Entry],
    ledger: Path | None,
    work: Path,
    began: float,
    end: float | None,
) -> list[Entry]:
    """Train, evaluate and record each job; returns the new entries.

    `began` and `end` are times of the monotonic clock. A job starts only if its estimated time fits
    before `end`; later ones that are shorter may fit. The first job always starts, and continues in
    the next call if it does not end in time.
    """
    finished: list[Entry] = []
    too_long: list[str] = []
    opened: dict[Data, StudyData] = {}
    others: dict[str, LabeledData] | None = None
    for number, job in enumerate(jobs, 1):
        if (images := opened.get(job.recipe.data)) is None:
            # Only the images of a scale count in the ledger of the package.
            images = open_study_data(job, data, device, console, any_images=ledger != RESULTS)
            if others is None:
                others = decode_transfer(transfer, eval_transform(job.recipe), device)
            opened[job.recipe.data] = images = replace(images, transfer=others)
            startup = time.monotonic() - began
        seconds = _seconds_left(job, len(images.train), work) or estimate_seconds(
            job.recipe, [*entries, *finished], device_name(device), len(images.train)
        )
        left = math.inf if end is None else end - time.monotonic()
        is_late = dist.gather_objects(seconds > left)[0]  # else one would wait for the others
        if number > 1 and is_late:
            too_long.append(f"{job.name} ({format_duration(seconds)})")
            continue
        about = "" if job.quick else f", about {format_duration(seconds)}"
        count = f"{job.recipe.epochs} epoch{'s' * (job.recipe.epochs != 1)}"
        console.print(f"[{number}/{len(jobs)}] {job.name}: {count}{about}")
        entry = run_job(job, images, device, console, work=work, end=end, startup=startup)
        if entry is None:
            console.print(f"Saved {job.name}. Repeat the command to continue it.")
            continue
        if dist.rank() == 0:
            if ledger is not None:
                entry.write(ledger)
            write_json(job.run_folder(work).path / ENTRY, to_json(asdict(entry)))
            console.print(f"    {describe(entry)}", soft_wrap=True)
            for name, scores in entry.transfer.items():
                console.print(f"    on {name}: {describe_scores(scores)}", soft_wrap=True)
        finished.append(entry)
    if too_long:
        console.print(
            f"Too long for the time left; repeat the command later for: {', '.join(too_long)}.",
            soft_wrap=True,
        )
    return finished


def describe(entry: Entry) -> str:
    """One line with the accuracies, their intervals and the time of an entry."""
    if entry.diverged:
        return f"diverged: {entry.diverged}"
    seconds = entry.seconds
    return (
        f"{describe_scores(entry.results)} on the {entry.scored_on} images; {seconds['total']:.0f} "
        f"s: first step {seconds['first_step']:.0f}, training {seconds['train']:.0f}, evaluation "
        f"{seconds['evaluate']:.0f}; {entry.images_per_second or 0:,.0f} images/s"
    )


def describe_scores(results: Results) -> str:
    """The accuracies with their intervals, in a line."""
    return ", ".join(
        f"{title} {100 * r['accuracy']:.1f} % [{100 * r['low']:.1f}, {100 * r['high']:.1f}]"
        for title, name in (("kNN", "knn"), ("kNN k=200", "knn_200"), ("linear", "linear"))
        if (r := results.get(name))
    )


def run_job(
    job: Job,
    data: StudyData,
    device: torch.device,
    console: Console,
    *,
    work: Path,
    end: float | None,
    startup: float,
) -> Entry | None:
    """Train one job from its last checkpoint, if any, and evaluate it; None if time ran out."""
    check_batch_size(data.train, job.recipe.batch_size, dist.world_size())
    recipe = replace(
        job.adapted,
        log_every=10_000_000,  # only where online_knn is measured: a record waits for the device
        save_every=max(job.recipe.save_every, job.recipe.epochs),
        measure_every=measure_spacing(job.recipe),
    )
    run = job.run_folder(work)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    diverged, scores, other = "", Scores({}, {}, LabelFree({}, [])), 0.0
    with lock_run(run):
        dist.on_first(lambda: _start_again_if_finished(run))
        try:
            backbone = _train(job, recipe, run, data, device, console, end)
            if backbone is None:
                return None
            other = _other_memory(device)
            began = time.monotonic()
            scores = score(backbone, recipe, data)
            del backbone
        except DivergedError as error:
            diverged, began = str(error), time.monotonic()
        peak = torch.cuda.max_memory_reserved(device) / 2**30 if device.type == "cuda" else None
        gc.collect()  # a recorded step refers to itself, and keeps the memory of its graph
        seconds: dict[str, float] = read_json(run.path / SECONDS) or {}
        (run.checkpoints / "previous.pt").unlink(missing_ok=True)
    seconds["evaluate"] = round(time.monotonic() - began, 2)
    seconds |= {"total": round(sum(seconds.values()), 2), "startup": round(startup, 2)}
    records = run.records()
    speeds = sorted(r["images_per_second"] for r in records[1:] or records)
    return Entry(
        study=job.study,
        arm=job.arm,
        scale=job.scale,
        seed=recipe.seed,
        scored_on=job.scored_on,
        recipe=to_dict(job.recipe),
        recipe_hash=hash_recipe(job.recipe),
        version=describe_version() | {"torch": torch.__version__},
        device=device_name(device),
        command=job.command,
        finished=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        images={
            "train": len(data.train),
            "test": len(data.labeled.labels()[1]),
            "classes": data.labeled.num_classes,
        },
        data_fingerprint=data.fingerprint,
        results=scores.results,
        transfer=scores.transfer,
        label_free=scores.label_free.numbers,
        view_variance=scores.label_free.view_variance,
        curve=read_curve(records),
        seconds=seconds,
        images_per_second=speeds[len(speeds) // 2] if speeds else None,
        peak_memory_gib=None if peak is None else round(peak, 2),
        other_memory_gib=round(other, 2),
        quick=job.quick,
        diverged=diverged,
    )


def measure_spacing(recipe: Recipe) -> int:
    """Epochs between measurements: for CURVE_POINTS of them, or finer if the arm asks for it."""
    spacing = max(1, recipe.epochs // CURVE_POINTS)
    if recipe.measure_every == Recipe.measure_every:  # the default: nobody asked for it
        return spacing
    return min(spacing, recipe.measure_every)


def _train(
    job: Job,
    recipe: Recipe,
    run: Run,
    data: StudyData,
    device: torch.device,
    console: Console,
    end: float | None,
) -> torch.nn.Module | None:
    """Train to the end and return the backbone; None if time ran out, with a checkpoint saved.

    The seconds of this call are added to those of earlier ones, however it ends.
    """
    before = read_json(run.path / SECONDS) or {}
    dist.on_first(
        lambda: write_json(
            run.recipe_path,
            to_dict(replace(recipe, data=replace(recipe.data, path=data.path, labels=True)))
            | {"images": len(data.train), "data_fingerprint": data.fingerprint},
        )
    )
    clock = Stopwatch()
    try:
        state = pretrain(
            recipe,
            run,
            data.train,
            device,
            knn=build_online_knn(recipe, data.train),
            console=console,
            deadline=None if end is None else end - EVALUATION_SECONDS * (1 + len(data.transfer)),
            clock=clock,
            list_groups=False,  # as many tables as arms
        )
    except StoppedError as error:
        sentence = f"Stopped while training {job.name}. Repeat the command to continue it."
        raise StoppedError(sentence, error.signal_number) from None
    finally:
        clock.lap("steps")
        first_step = clock.seconds["compile"]
        seconds = {
            "first_step": round(before.get("first_step", 0.0) + first_step, 2),
            "train": round(before.get("train", 0.0) + sum(clock.seconds.values()) - first_step, 2),
        }
        # A call without a step has loaded the last checkpoint only. The first process does not wait
        # for the others, of which one may have failed.
        if first_step and dist.rank() == 0:
            write_json(run.path / SECONDS, seconds)
    done = state.step == recipe.epochs * (len(data.train) // recipe.batch_size)
    return state.method.student.backbone if done else None


def _start_again_if_finished(run: Run) -> None:
    """Set a finished run aside, which would only be scored again; else it is continued."""
    if (run.path / ENTRY).exists():
        set_old_run_aside(run)


def _other_memory(device: torch.device) -> float:
    """GiB of the GPU that this process did not allocate; 0 on a CPU."""
    if device.type != "cuda":
        return 0.0
    free, total = torch.cuda.mem_get_info(device)
    return (total - free - torch.cuda.memory_reserved(device)) / 2**30


class Scores(NamedTuple):
    """Accuracies with their intervals, those on other images, and the measures without labels."""

    results: Results
    transfer: dict[str, Results]
    label_free: LabelFree


def score(backbone: torch.nn.Module, recipe: Recipe, data: StudyData) -> Scores:
    """Measure the encoder with labels, on other images too, and without labels."""
    transform, several = eval_transform(recipe), dist.world_size() > 1
    labeled, *others = (
        replace(one, transform=transform, distributed=several)
        for one in (data.labeled, *data.transfer.values())
    )
    train, test = labeled.features(backbone)
    assert test is not None
    results = _score_features(labeled, train, test)
    transfer = {}
    for name, other in zip(data.transfer, others, strict=True):
        other_train, other_test = other.features(backbone)
        assert other_test is not None
        transfer[name] = _score_features(other, other_train, other_test)
    return Scores(results, transfer, measure_label_free(backbone, recipe, labeled, test))


def _score_features(labeled: LabeledData, train: Features, test: Features) -> Results:
    """Measure kNN, with our default and with Lightly's settings, and a linear probe."""
    evaluators: dict[str, KNN | LinearProbe] = {
        "knn": KNN(data=labeled, ks=(20,)),
        "knn_200": KNN(data=labeled, ks=(200,), temperature=0.1),
        "linear": LinearProbe(data=labeled),
    }
    results = {}
    for name, evaluator in evaluators.items():
        found = evaluator.score(train, test)
        keys = {"accuracy": "accuracy", "low": "accuracy_low", "high": "accuracy_high"}
        results[name] = {key: round(found[long], 6) for key, long in keys.items()}
    return results


def read_curve(records: Sequence[dict[str, Any]]) -> dict[str, list[float | None]]:
    """Columns of the log; those without any number are left out."""
    columns = {
        "seconds" if name == "time" else name: [_rounded(record.get(name)) for record in records]
        for name in CURVE
    }
    return {n: column for n, column in columns.items() if any(x is not None for x in column)}


def _rounded(value: int | float | None) -> int | float | None:
    return None if value is None else float(f"{value:.5g}")


def _seconds_left(job: Job, images: int, work: Path) -> float | None:
    """How long an interrupted run still takes, by the speed in its log; None if that is unknown."""
    run = job.run_folder(work)
    records = [] if (run.path / ENTRY).exists() else run.records()
    if not records or not (speed := records[-1]["images_per_second"]):
        return None
    done = records[-1]["step"] * job.recipe.batch_size
    return max(0.0, job.recipe.epochs * images - done) / speed + EVALUATION_SECONDS
