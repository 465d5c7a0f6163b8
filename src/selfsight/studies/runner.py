"""Train the arms of a study that the ledger lacks, one after another in one process."""

import gc
import math
import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from selfsight import dist
from selfsight.data import CachedImages, ImageStore, Source, list_splits, open_source
from selfsight.data.loader import check_batch_size
from selfsight.errors import DivergedError, UserError, suggest
from selfsight.evals.knn import KNN
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.linear import LinearProbe
from selfsight.evals.splits import stratified
from selfsight.options import StudyOptions
from selfsight.recipe import Data, Recipe, eval_transform, override, to_dict
from selfsight.run_folder import Run, read_json, write_json
from selfsight.runs.start_resume import device_name, open_recipe_images
from selfsight.studies.base import Scale, Study
from selfsight.studies.ledger import Entry, describe_version, find_entries, hash_recipe
from selfsight.train.online_eval import build_online_knn
from selfsight.train.pretrain import pretrain
from selfsight.train.progress_bar import format_duration

HELD_OUT_SHARE = 0.1  # of the training images of each class, for tuning: 5,000 of CIFAR-10's
CURVE_POINTS = 20  # measurements of online_knn during a run
CURVE = (
    *("epoch", "time", "loss", "online_knn", "online_knn_dips"),
    *("effective_rank", "information_bound"),
)
QUICK_BATCH, QUICK_IMAGES = 64, 1200
UNKNOWN_SPEED = {"cuda": 40_000.0, "cpu": 100.0}  # views per second, before anything is measured
EVALUATION_SECONDS = 20.0  # kept free for it, before anything is measured


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training run to do: an arm of a study with a seed."""

    study: str
    arm: str
    scale: Scale
    recipe: Recipe
    """The arm's recipe with the seed."""
    adapted: Recipe
    """The same, in a precision that the device supports."""
    settings: tuple[str, ...] = ()
    """Flags that changed the arm's recipe."""
    held_out: bool = False
    quick: bool = False

    @property
    def command(self) -> str:
        """The command that trains this job alone."""
        words = ["selfsight", "study", self.study, "--scale", self.scale, "--arms", self.arm]
        words += ["--seeds", str(self.recipe.seed)]
        words += [*self.held_out * ("--held-out",), *self.quick * ("--quick",), *self.settings]
        return shlex.join(words)

    @property
    def name(self) -> str:
        """Study, arm and seed."""
        return f"{self.study}.{self.arm}, seed {self.recipe.seed}"

    @property
    def scored_on(self) -> str:
        """The images that it is scored on."""
        return "held-out" if self.held_out else "test"

    def is_done(self, entries: Sequence[Entry]) -> bool:
        """Whether an entry has the same recipe and seed."""
        done = find_entries(entries, self.recipe, scale=self.scale, scored_on=self.scored_on)
        return self.recipe.seed in done

    def run_folder(self, work: Path) -> Run:
        """The folder of its run, which differs for other settings."""
        words = (self.study, self.arm, f"seed{self.recipe.seed}", hash_recipe(self.recipe))
        return Run(work / ".".join((*words, *self.held_out * ("held_out",))))


def plan_jobs(study: Study, options: StudyOptions, adapt: Callable[[Recipe], Recipe]) -> list[Job]:
    """List the runs of a study: all arms with the first seed, then with the next.

    `adapt` changes a recipe for the device.
    """
    scale = options.scale
    known = {arm.name: arm for arm in study.arms_at(scale)}
    if not known:
        scales = sorted({arm.scale for arm in study.arms})
        raise UserError(
            f"{study.name} has no arms at the scale {scale}. Give --scale {' or '.join(scales)}."
        )
    names = [name.removeprefix(f"{study.name}.") for name in options.arms] or list(known)
    for name in names:
        if name not in known:
            raise UserError(
                f'{study.name} has no arm "{name}" at the scale {scale}.{suggest(name, known)} '
                f"`selfsight studies {study.name}` lists them."
            )
    jobs = []
    for seed in options.seeds:
        for name in names:
            recipe = known[name].build()
            recipe = make_quick(recipe) if options.quick else recipe
            recipe = override(
                recipe, {"seed": seed}, options.settings, command=f"study {study.name}"
            )
            job = Job(
                study=study.name,
                arm=name,
                scale=scale,
                recipe=recipe,
                adapted=adapt(recipe),
                settings=tuple(options.settings),
                held_out=options.held_out,
                quick=options.quick,
            )
            jobs.append(job)
    return jobs


class StudyData(NamedTuple):
    """The images of a study, decoded once, and those that arms are scored on."""

    train: ImageStore
    test: ImageStore


def open_study_data(job: Job, path: str, device: torch.device, console: Console) -> StudyData:
    """Decode the training and test images, once for all jobs like this one."""
    recipe = job.recipe
    if list_splits(path) != ("train", "test"):
        raise UserError(
            f"{path} has no training and test images. Give a folder with train/ and test/ in it, "
            "or with Parquet files that have these words in their names."
        )

    def open_split(split: str) -> ImageStore:
        source = open_source(path, split=split, labels=True)
        source = _take_some(source, QUICK_IMAGES) if job.quick else source
        data = replace(recipe.data, path=path, labels=True)
        return open_recipe_images(replace(recipe, data=data), device, console, source)

    train = open_split("train")
    return hold_out(train) if job.held_out else StudyData(train, open_split("test"))


def hold_out(images: ImageStore) -> StudyData:
    """Hold out a tenth of the images of each class, always the same."""
    if not isinstance(images, CachedImages) or images.labels is None:
        raise UserError(
            "--held-out needs labeled images that are cached. Use --data.storage cache."
        )
    split = stratified(images.labels, test_share=HELD_OUT_SHARE, seed=0)
    return StudyData(images.select(split.train), images.select(split.test))


def _take_some(source: Source, count: int) -> Source:
    """Take images at equal distances, so that all classes are among them."""
    step = max(1, len(source) // count)
    return replace(
        source,
        names=source.names[::step],
        labels=None if source.labels is None else source.labels[::step],
        read=lambda i: source.read(i * step),
        fingerprint=None,
        shard_starts=None,
        chunk_size=1,
        read_range=None,
        local_path=None,
    )


def make_quick(recipe: Recipe) -> Recipe:
    """Shrink a recipe to one epoch of a tiny network, to try a study in seconds."""
    name = recipe.backbone.name if recipe.backbone.is_vit else "resnet8_narrow"
    schedule = replace(recipe.optim.schedule, warmup_epochs=0.0)
    quick = replace(
        recipe,
        backbone=replace(recipe.backbone, name=name),
        optim=replace(recipe.optim, schedule=schedule),
        epochs=1,
    )
    try:
        return replace(quick, batch_size=min(quick.batch_size, QUICK_BATCH))
    except UserError:  # as many negatives need a larger batch
        return quick


def estimate_seconds(recipe: Recipe, entries: Sequence[Entry], device: str, images: int) -> float:
    """Estimate how long an arm takes from entries of this device: the most similar first."""
    views = len(recipe.views)
    work = recipe.epochs * images * views

    def likeness(entry: Entry) -> tuple[bool, ...]:
        trained = entry.recipe
        return (
            entry.recipe_hash == hash_recipe(recipe),
            trained["method"]["name"] == to_dict(recipe)["method"]["name"],
            trained["backbone"]["name"] == recipe.backbone.name,
            len(trained["views"]) == views,
            trained["batch_size"] == recipe.batch_size,
        )

    usable = [e for e in entries if e.device == device and "train" in e.seconds and not e.diverged]
    if not usable:
        speed = UNKNOWN_SPEED["cpu" if device == "CPU" else "cuda"]
        return work / speed + EVALUATION_SECONDS
    nearest = max(usable, key=likeness)
    trained = nearest.recipe
    done = trained["epochs"] * nearest.images["train"] * len(trained["views"])
    seconds = nearest.seconds
    rest = seconds["first_step"] + seconds["evaluate"]
    return seconds["train"] * work / done + rest


def run_jobs(
    jobs: Sequence[Job],
    device: torch.device,
    console: Console,
    *,
    data: str,
    entries: Sequence[Entry],
    ledger: Path | None,
    work: Path,
    end: float | None,
) -> list[Entry]:
    """Train, evaluate and record each job; returns the new entries.

    A job begins only if its estimated time fits before `end`, a time of the monotonic clock; later
    ones that are shorter may fit. The first job always begins, and goes on in the next call if it
    does not end in time.
    """
    finished: list[Entry] = []
    too_long: list[str] = []
    opened: dict[Data, StudyData] = {}
    for number, job in enumerate(jobs, 1):
        if (images := opened.get(job.recipe.data)) is None:
            images = opened[job.recipe.data] = open_study_data(job, data, device, console)
            startup = process_seconds()
        seconds = estimate_seconds(
            job.recipe, [*entries, *finished], device_name(device), len(images.train)
        )
        seconds = max(0.0, seconds - _seconds_so_far(job, work))
        left = math.inf if end is None else end - time.monotonic()
        if seconds > left and number > 1:
            too_long.append(f"{job.name} ({format_duration(seconds)})")
            continue
        console.print(
            f"[{number}/{len(jobs)}] {job.name}: {job.recipe.epochs} epochs, about "
            f"{format_duration(seconds)}",
            highlight=False,
            markup=False,
        )
        entry = run_job(job, images, device, console, work=work, end=end, startup=startup)
        if entry is None:
            console.print(f"Saved {job.name}: the same command goes on with it.", highlight=False)
            continue
        if dist.rank() == 0:
            if ledger is not None:
                entry.write(ledger)
            console.print(f"    {describe(entry)}", highlight=False, markup=False, soft_wrap=True)
        finished.append(entry)
    if too_long:
        console.print(
            f"Too long for the time left, for the same command later: {', '.join(too_long)}.",
            highlight=False,
            soft_wrap=True,
        )
    return finished


def describe(entry: Entry) -> str:
    """One line with the accuracies, their intervals and the time of an entry."""
    if entry.diverged:
        return f"diverged: {entry.diverged}"
    parts = [
        f"{title} {100 * r['accuracy']:.1f} % [{100 * r['low']:.1f}, {100 * r['high']:.1f}]"
        for title, name in (("kNN", "knn"), ("kNN k=200", "knn_200"), ("linear", "linear"))
        if (r := entry.results.get(name))
    ]
    seconds = entry.seconds
    return (
        f"{', '.join(parts)} on the {entry.scored_on} images; {seconds['total']:.0f} s: first step "
        f"{seconds['first_step']:.0f}, training {seconds['train']:.0f}, evaluation "
        f"{seconds['evaluate']:.0f}; {entry.images_per_second or 0:,.0f} images/s"
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
    run, began = job.run_folder(work), time.monotonic()
    recipe = replace(
        job.adapted,
        log_every=10_000_000,  # only where online_knn is measured: a record waits for the device
        save_every=max(job.recipe.save_every, job.recipe.epochs),
        measure_every=max(1, job.recipe.epochs // CURVE_POINTS),
    )
    if dist.rank() == 0:
        write_json(run.recipe_path, to_dict(recipe) | {"images": len(data.train)})
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    before = read_json(run.path / "seconds.json") or {}
    deadline = None if end is None else end - EVALUATION_SECONDS
    diverged, results, backbone = "", {}, None
    try:
        state = pretrain(
            recipe,
            run,
            data.train,
            device,
            knn=build_online_knn(recipe, data.train),
            console=console,
            deadline=deadline,
        )
        backbone, steps = state.method.student.backbone, state.step
        del state
    except DivergedError as error:
        diverged, steps = str(error), 0
    records = run.records()
    trained = time.monotonic()
    first_step = records[-1]["first_step"] if records else 0.0
    seconds = {
        "first_step": round(before.get("first_step", 0.0) + first_step, 2),
        "train": round(before.get("train", 0.0) + trained - began - first_step, 2),
    }
    if dist.rank() == 0:
        write_json(run.path / "seconds.json", seconds)
    total_steps = recipe.epochs * (len(data.train) // recipe.batch_size)
    if steps < total_steps and not diverged:
        return None
    if backbone is not None:
        results = score(backbone, recipe, data)
    peak = torch.cuda.max_memory_reserved(device) / 2**30 if device.type == "cuda" else None
    del backbone
    gc.collect()  # a recorded step refers to itself, and keeps the memory of its graph
    seconds["evaluate"] = round(time.monotonic() - trained, 2)
    seconds |= {"total": round(sum(seconds.values()), 2), "startup": round(startup, 2)}
    (run.checkpoints / "previous.pt").unlink(missing_ok=True)
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
        images={"train": len(data.train), "test": len(data.test)},
        results=results,
        curve=read_curve(records),
        seconds=seconds,
        images_per_second=speeds[len(speeds) // 2] if speeds else None,
        peak_memory_gib=None if peak is None else round(peak, 2),
        quick=job.quick,
        diverged=diverged,
    )


def score(backbone: torch.nn.Module, recipe: Recipe, data: StudyData) -> dict[str, dict[str, Any]]:
    """Accuracy of kNN, with our default and with Lightly's settings, and of a linear probe."""
    labeled = LabeledData(
        train=data.train,
        test=data.test,
        transform=eval_transform(recipe),
        batch_size=1024,
        distributed=dist.world_size() > 1,
    )
    train, test = labeled.features(backbone)
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


def _seconds_so_far(job: Job, work: Path) -> float:
    """Seconds that earlier calls have trained a job for."""
    return sum((read_json(job.run_folder(work).path / "seconds.json") or {}).values(), 0.0)


def process_seconds() -> float:
    """Seconds since this process was started, imports included; Linux only, else 0."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return uptime - ticks / os.sysconf("SC_CLK_TCK")
