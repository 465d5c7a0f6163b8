"""The runs of a study that can be trained, and their images."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from selfsight.data import CachedImages, ImageStore, Source, list_splits, open_source
from selfsight.data.eval_transform import EvalTransform
from selfsight.data.sources.source import select_images
from selfsight.errors import UserError, suggest
from selfsight.evals.eval_images import EvalImages
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.stratified_splits import stratified
from selfsight.options.study_options import StudyOptions
from selfsight.recipe import Recipe, eval_transform, override
from selfsight.run_files.run_folder import Run
from selfsight.runs.open_run_images import Fingerprint, fingerprint_everywhere, open_recipe_images
from selfsight.studies.ledger import Entry, find_entries, hash_recipe
from selfsight.studies.study_types import SIZES, SMALL_IMAGES, Arm, Scale, Study, narrow_network

HELD_OUT_SHARE = 0.1  # of the training images of each class, for tuning: 5,000 of CIFAR-10's
QUICK_BATCH, QUICK_IMAGES = 64, 1200


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
    transfer: tuple[str, ...] = ()
    """Other images that it is scored on."""
    held_out: bool = False
    quick: bool = False

    @property
    def command(self) -> str:
        """The command that trains this job alone."""
        words = ["selfsight", "study", self.study, "--scale", self.scale, "--arms", self.arm]
        words += ["--seeds", str(self.recipe.seed)]
        words += ["--transfer", *self.transfer] if self.transfer else []
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


def plan_jobs(
    studies: Sequence[Study], options: StudyOptions, adapt: Callable[[Recipe], Recipe]
) -> list[Job]:
    """List the runs of studies: all arms with the first seed, then with the next.

    `adapt` changes a recipe for the device. A run that several arms share is listed once.
    """
    chosen = choose_arms(studies, options.arms or (), options.scale)
    if any(word.split("=")[0] == "--seed" for word in options.settings):
        raise UserError("--seed would train all --seeds with the same one. Use --seeds alone.")
    jobs: dict[tuple[Any, ...], Job] = {}
    for seed in options.seeds:
        for study, arm in chosen:
            recipe = make_quick(arm.build()) if options.quick else arm.build()
            recipe = override(
                recipe, {"seed": seed}, options.settings, command=f"study {study.name}"
            )
            job = Job(
                study=study.name,
                arm=arm.name,
                scale=options.scale,
                recipe=recipe,
                adapted=adapt(recipe),
                settings=tuple(options.settings),
                transfer=tuple(map(str, options.transfer)),
                held_out=options.held_out,
                quick=options.quick,
            )
            # Shrunk recipes of different arms may be equal; each is still tried.
            key = (study.name, arm.name) if options.quick else (hash_recipe(recipe),)
            jobs.setdefault((seed, *key), job)
    return list(jobs.values())


def choose_arms(
    studies: Sequence[Study], names: Sequence[str], scale: str
) -> list[tuple[Study, Arm]]:
    """Find the arms ARM or STUDY.ARM, study by study; without names, all arms of the scale.

    An ARM that several studies have is chosen in each.
    """
    known = {f"{study.name}.{arm.name}": arm for study in studies for arm in study.arms_at(scale)}
    for study in studies:
        if not study.arms_at(scale):
            scales = sorted(study.scales)
            raise UserError(
                f"{study.name} has no arms at the scale {scale}. "
                f"Give --scale {' or '.join(scales)}."
            )
    given = " or ".join(study.name for study in studies)
    for name in names:
        shorts = [full.partition(".")[2] for full in known]
        if name not in known and name not in shorts:
            owner, _, short = name.rpartition(".")
            if owner and owner not in {study.name for study in studies}:
                raise UserError(
                    f"{name} is not an arm of {given}. Name {owner} too, or choose another arm."
                )
            elsewhere = [a.scale for study in studies for a in study.arms if a.name == short]
            hint = (
                f" It is at --scale {elsewhere[0]}."
                if elsewhere
                else suggest(name, known if owner else shorts)
            )
            raise UserError(
                f'{owner or given} has no arm "{short}" at the scale {scale}.{hint} '
                f"`selfsight studies {owner or studies[0].name}` lists them."
            )
    chosen = []
    for study in studies:
        arms = {arm.name: arm for arm in study.arms_at(scale)}
        mine = [name.removeprefix(f"{study.name}.") for name in names] or list(arms)
        chosen += [(study, arms[name]) for name in mine if name in arms]
    return chosen


@dataclass(frozen=True)
class StudyData:
    """The images of a study, decoded once: as stored for training, and those that are measured."""

    train: ImageStore
    labeled: LabeledData
    path: str = ""
    """Where the training images are; empty if only some of them are used."""
    fingerprint: Fingerprint = field(default_factory=dict)
    """Of the training images."""
    transfer: dict[str, LabeledData] = field(default_factory=dict)
    """Other images that encoders are scored on, by their name."""


def open_study_data(
    job: Job, path: str, device: torch.device, console: Console, *, any_images: bool = True
) -> StudyData:
    """Decode the training and test images, once for all jobs like this one.

    Encoders are measured on images that are decoded at full size, as `selfsight evaluate` does.
    Images that cannot be those of the scale are noted, or refused unless `any_images`.
    """
    recipe = job.recipe
    source = open_split(path, "train", quick=job.quick)
    transform = eval_transform(recipe)
    if not job.quick and (difference := _compare_with_scale(job.scale, source)):
        if not any_images:
            raise UserError(
                f"{difference} Its results would count as those of {job.scale}. Give the images of "
                "that set, or a folder of your own for the results: --ledger FOLDER."
            )
        console.print(f"{difference} Results are comparable with your own only.", soft_wrap=True)
    is_part = job.quick or job.scale == "small"
    if job.scale == "small":
        source = _take_some(source, SMALL_IMAGES)
    data = replace(recipe.data, path=path, labels=True)
    train = open_recipe_images(replace(recipe, data=data), device, console, source)
    images = EvalImages(source, transform, device)
    if job.held_out:
        return hold_out(train, LabeledData(train=images, transform=transform))
    test = EvalImages(open_split(path, "test", quick=job.quick), transform, device)
    labeled = LabeledData(train=images, test=test, transform=transform)
    found = fingerprint_everywhere(recipe, source)
    return StudyData(train, labeled, "" if is_part else path, found)


def open_transfer(
    specs: Sequence[str | Path], *, quick: bool = False
) -> dict[str, tuple[Source, Source]]:
    """Open the sources of other labeled images, NAME=DATA or DATA, by their name."""
    opened: dict[str, tuple[Source, Source]] = {}
    for spec in map(str, specs):
        name, equals, path = spec.partition("=")
        if not equals or Path(spec).exists():  # a path may have "=" in it
            name, path = Path(spec).name, spec
        if not name or name == "arm" or name in opened:
            raise UserError(
                f'--transfer {spec} would be called "{name}", which '
                f"{'another data set is' if name in opened else 'is not a name'}. Give it a name: "
                f"--transfer NAME={path or 'DATA'}."
            )
        train, test = (open_split(path, split, quick=quick) for split in ("train", "test"))
        opened[name] = train, test
    return opened


def decode_transfer(
    opened: dict[str, tuple[Source, Source]], transform: EvalTransform, device: torch.device
) -> dict[str, LabeledData]:
    """Decode other labeled images."""
    return {
        name: LabeledData(
            train=EvalImages(train, transform, device),
            test=EvalImages(test, transform, device),
            transform=transform,
        )
        for name, (train, test) in opened.items()
    }


def open_split(path: str, split: str, *, quick: bool) -> Source:
    """Open the training or the test images; a few of them for a quick study."""
    if list_splits(path) != ("train", "test"):
        open_source(path)  # explains a path that does not exist
        raise UserError(
            f"{path} has no training and test images. Give a folder with train/ and test/ in it, "
            "or with Parquet files that have these words in their names."
        )
    source = open_source(path, split=split, labels=True)
    return _take_some(source, QUICK_IMAGES) if quick else source


def count_images(scale: str, path: str) -> int:
    """Number of training images that runs of this scale have in this data set."""
    source = open_split(path, "train", quick=False)
    return len(_take_some(source, SMALL_IMAGES) if scale == "small" else source)


def _compare_with_scale(scale: str, source: Source) -> str:
    """Say that the training images are not those of the scale, by their number; else empty."""
    classes = 0 if source.labels is None else len(np.unique(source.labels))
    expected = SIZES.get(scale, (len(source), classes))
    if (len(source), classes) == expected:
        return ""
    return (
        f"{source.name} has {len(source):,} training images of {classes} classes, and "
        f"{'CIFAR-10' if scale == 'small' else scale} has {expected[0]:,} of {expected[1]}."
    )


def hold_out(train: ImageStore, labeled: LabeledData) -> StudyData:
    """Hold out a tenth of the images of each class, always the same."""
    if not isinstance(train, CachedImages) or train.labels is None:
        raise UserError(
            "--held-out needs labeled images that are cached. Use --data.storage cache."
        )
    split = stratified(train.labels, test_share=HELD_OUT_SHARE, seed=0)
    return StudyData(train.select(split.train), replace(labeled, split=split))


def _take_some(source: Source, count: int) -> Source:
    """Take images of all classes, at equal distances among those of a class."""
    step = max(1, len(source) // count)
    by_class = np.arange(len(source))
    if source.labels is not None:
        by_class = np.argsort(np.asarray(source.labels), kind="stable")
    return select_images(source, np.sort(by_class[::step]))


def make_quick(recipe: Recipe) -> Recipe:
    """Shrink a recipe to one epoch of a tiny network, to try a study in seconds."""
    schedule = replace(recipe.optim.schedule, warmup_epochs=0.0)
    quick = replace(
        recipe,
        backbone=narrow_network(recipe.backbone),
        optim=replace(recipe.optim, schedule=schedule),
        epochs=1,
    )
    try:
        return replace(quick, batch_size=min(quick.batch_size, QUICK_BATCH))
    except UserError:  # as many negatives need a larger batch
        return quick
