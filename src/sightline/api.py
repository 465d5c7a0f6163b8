"""What a person asks for: pretrain, resume, evaluate, load, doctor."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from sightline import auto, dist
from sightline import doctor as doctors
from sightline.data import Pictures, open_source, splits_of
from sightline.data import load as load_pictures
from sightline.errors import UserError
from sightline.nn import Backbone
from sightline.recipe import Recipe, from_dict, overridden, to_dict
from sightline.recipes import recipe as named_recipe
from sightline.runs import Run, read_json
from sightline.train import checkpoint, measure, whole
from sightline.train.run import build
from sightline.train.show import rows

FACTS_FROM = 128  # pictures that the automatic recipe looks at


def pretrain(
    data: str | Path,
    *,
    method: str | None = None,
    recipe: str | Recipe | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    device: str = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    classes: str | Path | None = None,
    labels: bool = False,
    settings: Sequence[str] = (),
) -> Run:
    """Learn an encoder from pictures; returns the run folder.

    `settings` are flags of the recipe as on the command line: ["--optim.lr", "0.3"].
    """
    if method is not None and recipe is not None:
        raise UserError("Give --method or --recipe, not both: a recipe names its method.")
    console, where = _console(), auto.device_for(device)
    run = Run(Path(out) if out else _free_folder(str(data), method, recipe))
    if resume and run.recipe_path.exists():
        return _go_on(run, where, console, allow=method)
    given = {"epochs": epochs, "batch_size": batch_size}
    if recipe is None:
        source = open_source(data, labels=labels, classes=classes)
        facts = _facts(doctors.examine(source, sample=FACTS_FROM))
        made, reasons = auto.automatic(facts, where, method=method, **given)
    else:
        made, reasons = named_recipe(recipe) if isinstance(recipe, str) else recipe, {}
    made = overridden(made, given | {"seed": seed}, settings)
    made, adapted = auto.fit_device(made, where)
    kept = replace(
        made.data,
        path=str(data),
        classes=str(classes) if classes else made.data.classes,
        labels=labels or made.data.labels,
    )
    made = replace(made, data=kept)
    _make_room(run, overwrite=overwrite)
    whole.begin(made, reasons | adapted, run, where, console, automatic=recipe is None)
    return run


def resume(run: Run | str | Path, *, device: str = "auto", method: str | None = None) -> Run:
    """Go on where a run stopped; a finished run is left as it is."""
    return _go_on(_existing(run), auto.device_for(device), _console(), allow=method)


def evaluate(
    run: Run | str | Path,
    *,
    labeled: str | Path | None = None,
    test: str | Path | None = None,
    k: int = 20,
    temperature: float = 0.07,
    device: str = "auto",
    seed: int = 0,
    quiet: bool = False,
) -> dict[str, Any]:
    """Measure a run's encoder beside the untrained one; writes results/*.json and the report."""
    run, where = _existing(run), auto.device_for(device)
    if test is not None and labeled is None:
        raise UserError("--test needs --labeled: the labelled pictures that are learnt from.")
    recipe = saved_recipe(run)
    trained = trained_backbone(run, recipe, where)
    untrained = build(recipe, where).student.backbone
    if labeled is None:
        pictures = whole.pictures_of(recipe, where)
        found = measure.without_labels(run, recipe, trained, untrained, pictures)
        table = [{"measure": name.replace("_", " "), **values} for name, values in found.items()]
    else:
        train, tested = _labelled(recipe, str(labeled), str(test) if test else None, where)
        found = measure.with_labels(
            run,
            recipe,
            trained,
            untrained,
            train,
            tested,
            k=k,
            temperature=temperature,
            seed=seed,
        )
        table = [
            {
                "measure": f"{name} accuracy",
                "trained": f"{found[name]['accuracy']:.1%}",
                "untrained": f"{found[name]['untrained_accuracy']:.1%}",
            }
            for name in ("knn", "linear")
        ]
        measure.draw_map(run, recipe, trained, train)
    verdict = whole.conclude(run, recipe)
    if not quiet:
        console = Console()
        console.print(rows(table))
        console.print(f"{verdict.sentence}\nReport: {run.report}", highlight=False)
    return found


def load(run: Run | str | Path, *, device: str = "cpu") -> Backbone:
    """The backbone of a run, in evaluation mode: normalised pictures in, features out."""
    run = _existing(run)
    return trained_backbone(run, saved_recipe(run), auto.device_for(device)).eval()


def doctor(
    data: str | Path, *, device: str = "auto", sample: int = 512, quiet: bool = False
) -> dict[str, Any]:
    """What is in the data, and the recipe that would be chosen for it."""
    where = auto.device_for(device)
    found = doctors.examine(data, sample=sample)
    made, reasons = auto.automatic(_facts(found), where)
    answer = asdict(found) | {"recipe": to_dict(made), "reasons": reasons}
    if not quiet:
        console = Console()
        console.print(doctors.words(found), highlight=False)
        console.print(whole.choices(made, reasons))
    return answer


def saved_recipe(run: Run, *, allow: str | None = None) -> Recipe:
    """The recipe of a run folder."""
    return from_dict(read_json(run.recipe_path) or {}, allow=allow)


def trained_backbone(run: Run, recipe: Recipe, device: torch.device) -> Backbone:
    """The student's backbone with the weights of the last checkpoint."""
    saved = checkpoint.load(run, device)
    if saved is None:
        raise UserError(
            f"{run.path} has no checkpoint yet: the run has not finished its first epoch. "
            f"Go on with: sightline resume {run.path}"
        )
    backbone = build(recipe, device).student.backbone
    prefix = "student.backbone."
    weights = {k: v for k, v in saved["method"].items() if k.startswith(prefix)}
    backbone.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items()})
    return backbone


def _labelled(
    recipe: Recipe, labeled: str, test: str | None, device: torch.device
) -> tuple[Pictures, Pictures | None]:
    """Labelled pictures to learn from, and those to be tested on if they lie apart."""
    splits = splits_of(labeled)
    held = test if test is not None else labeled
    train = open_source(labeled, labels=True, split="train" if "train" in splits else None)
    data = recipe.data

    def loaded(source: Any) -> Pictures:
        return load_pictures(source, store_size=data.store_size, channels=data.channels).to(device)

    if test is None and "test" not in splits:
        return loaded(train), None
    there = "test" if "test" in splits_of(held) else None
    return loaded(train), loaded(open_source(held, labels=True, split=there))


def _go_on(run: Run, device: torch.device, console: Console, *, allow: str | None) -> Run:
    recipe = saved_recipe(run, allow=allow)
    recipe, _ = auto.fit_device(recipe, device)
    whole.go_on(recipe, run, device, console)
    return run


def _existing(run: Run | str | Path) -> Run:
    run = run if isinstance(run, Run) else Run(Path(run))
    if not run.recipe_path.exists():
        raise UserError(
            f"{run.path} is not a run folder: it has no recipe.json. "
            "Give the folder that `sightline pretrain` wrote."
        )
    return run


def _make_room(run: Run, *, overwrite: bool) -> None:
    """Refuse to write into a folder that holds something, unless told to empty it."""
    if dist.local_rank() or not run.path.exists():
        return
    if run.path.is_file():
        raise UserError(f"--out {run.path} is a file; give a folder.")
    if not any(run.path.iterdir()):
        return
    if not overwrite:
        raise UserError(
            f"{run.path} is not empty. Add --resume to go on with the run in it, --overwrite to "
            "empty it first, or give another --out."
        )
    if not run.recipe_path.exists():
        raise UserError(
            f"{run.path} holds files but no run (no recipe.json), so --overwrite will not empty "
            "it. Empty it yourself, or give another --out."
        )
    shutil.rmtree(run.path)


def _free_folder(data: str, method: str | None, recipe: str | Recipe | None) -> Path:
    """runs/DATA-METHOD, with a number behind it where that is taken."""
    kind = recipe if isinstance(recipe, str) else method or "auto"
    name = f"{Path(data.split(':')[-1]).stem or 'run'}-{kind}"
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
    number, path = 1, Path("runs") / name
    while path.exists():
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path


def _facts(found: doctors.Examination) -> auto.Facts:
    if not found.short_side:
        name, why = found.unreadable[0]
        raise UserError(
            f"None of {found.sampled} pictures read from {found.data} is readable: {name}, for "
            f"one, because {why}. Check the files."
        )
    return auto.Facts(count=found.count, short_side=found.short_side, channels=found.channels)


def _console() -> Console:
    return Console(stderr=True, quiet=dist.local_rank() != 0)
