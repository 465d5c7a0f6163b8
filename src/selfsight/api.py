"""What a person asks for: pretrain, resume, evaluate, load, doctor."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from selfsight import auto_recipe, dist
from selfsight import doctor as doctors
from selfsight.console import build_table
from selfsight.data import open_source
from selfsight.errors import UserError
from selfsight.evals.few_labels import LabelAmount
from selfsight.evals.protocols import Asked
from selfsight.nn import Backbone
from selfsight.recipe import Recipe, overridden, to_dict
from selfsight.recipes import recipe as named_recipe
from selfsight.run_folder import Run
from selfsight.runs import compare as comparison
from selfsight.runs import evaluate as evaluation
from selfsight.runs import start_resume
from selfsight.runs.encoders import saved_recipe, trained_backbone

FACTS_FROM = 128  # images that the automatic recipe looks at


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
    """Learn an encoder from images; returns the run folder.

    `settings` are flags of the recipe as on the command line: ["--optim.lr", "0.3"].
    """
    if method is not None and recipe is not None:
        raise UserError("Give --method or --recipe, not both: a recipe names its method.")
    console, where = _console(), auto_recipe.device_for(device)
    run = Run(Path(out) if out else _free_folder(str(data), method, recipe))
    if resume and run.recipe_path.exists():
        return _go_on(run, where, console, allow=method)
    given = {"epochs": epochs, "batch_size": batch_size}
    if recipe is None:
        source = open_source(data, labels=labels, classes=classes)
        facts = _facts(doctors.examine(source, sample=FACTS_FROM))
        made, reasons = auto_recipe.automatic(facts, where, method=method, **given)
    else:
        made, reasons = named_recipe(recipe) if isinstance(recipe, str) else recipe, {}
    made = overridden(made, given | {"seed": seed}, settings)
    made, adapted = auto_recipe.fit_device(made, where)
    kept = replace(
        made.data,
        path=str(data),
        classes=str(classes) if classes else made.data.classes,
        labels=labels or made.data.labels,
    )
    made = replace(made, data=kept)
    _make_room(run, overwrite=overwrite)
    start_resume.begin(made, reasons | adapted, run, where, console, automatic=recipe is None)
    return run


def resume(run: Run | str | Path, *, device: str = "auto", method: str | None = None) -> Run:
    """Go on where a run stopped; a finished run is left as it is."""
    return _go_on(_existing(run), auto_recipe.device_for(device), _console(), allow=method)


def evaluate(
    run: Run | str | Path | None = None,
    *,
    labeled: str | Path | None = None,
    test: str | Path | None = None,
    protocols: Sequence[str] | None = None,
    k: int | Sequence[int] = (20, 200),
    temperature: float = 0.07,
    features: str = "backbone",
    backbone: str | None = None,
    image_size: int | None = None,
    trust: bool = False,
    part: str | None = None,
    against: Sequence[str] = (),
    untrained: bool = True,
    epochs: int | None = None,
    iterations: int | None = None,
    batch_size: int | None = None,
    share: float | None = None,
    per_class: int | None = None,
    split_file: str | Path | None = None,
    settings: Sequence[str] = (),
    out: str | Path | None = None,
    device: str = "auto",
    seed: int = 0,
    quiet: bool = False,
) -> dict[str, Any]:
    """Measure a run's encoder, or any other, beside the untrained one; writes results/*.json.

    `protocols` are names of `selfsight evaluate --protocols`: kNN and linear if not given, or
    what needs no labels where there are none. `backbone` is "timm:NAME", "torchvision:NAME" or a
    file of weights, in place of a run, `part` the encoder of a file that has several; `trust` lets
    files run code while they are read. `against` are runs or backbones whose numbers stand beside.
    `share`, `per_class` and `split_file` say how many labels protocols of few labels have;
    `settings` are flags of the protocols as on the command line: ["--head.lr", "0.3"].
    """
    if (run is None) == (backbone is None):
        raise UserError("Give a run folder or --backbone, one of them.")
    if run is not None:
        folder = _existing(run)
        word = str(folder.path)
    else:
        word = str(backbone)
        folder = Run(Path(out) if out else Path("runs") / _safe(word))
    return evaluation.evaluate(
        folder,
        word,
        auto_recipe.device_for(device),
        labeled=str(labeled) if labeled else None,
        test=str(test) if test else None,
        protocols=protocols or None,
        asked=Asked(
            ks=(k,) if isinstance(k, int) else tuple(k),
            temperature=temperature,
            epochs=epochs,
            iterations=iterations,
            batch_size=batch_size,
            amount=_amount(share, per_class, split_file),
            seed=seed,
            flags=tuple(settings),
        ),
        features=features,
        image_size=image_size,
        against=against,
        trust=trust,
        part=part,
        beside=untrained,
        quiet=quiet,
    )


def compare(runs: Sequence[Run | str | Path], *, quiet: bool = False) -> list[dict[str, Any]]:
    """A row for each folder from its results/*.json; nothing is written."""
    folders = [run if isinstance(run, Run) else Run(Path(run)) for run in runs]
    for folder in folders:
        if not folder.results.is_dir():
            raise UserError(
                f"{folder.path} has no results. Give folders that `selfsight evaluate` wrote to."
            )
    found, notes = comparison.compare(folders)
    if not quiet:
        console = Console()
        console.print(build_table(comparison.shown(found)))
        console.print("\n".join(notes), highlight=False, markup=False)
    return found


def load(run: Run | str | Path, *, device: str = "cpu") -> Backbone:
    """The backbone of a run, in evaluation mode: normalized images in, features out."""
    run = _existing(run)
    return trained_backbone(run, saved_recipe(run), auto_recipe.device_for(device)).eval()


def doctor(
    data: str | Path, *, device: str = "auto", sample: int = 512, quiet: bool = False
) -> dict[str, Any]:
    """What is in the data, and the recipe that would be chosen for it."""
    where = auto_recipe.device_for(device)
    found = doctors.examine(data, sample=sample)
    made, reasons = auto_recipe.automatic(_facts(found), where)
    answer = asdict(found) | {"recipe": to_dict(made), "reasons": reasons}
    if not quiet:
        console = Console()
        console.print(doctors.words(found), highlight=False)
        console.print(start_resume.choices(made, reasons))
    return answer


def _go_on(run: Run, device: torch.device, console: Console, *, allow: str | None) -> Run:
    recipe = saved_recipe(run, allow=allow)
    recipe, _ = auto_recipe.fit_device(recipe, device)
    start_resume.go_on(recipe, run, device, console)
    return run


def _existing(run: Run | str | Path) -> Run:
    run = run if isinstance(run, Run) else Run(Path(run))
    if not run.recipe_path.exists():
        raise UserError(
            f"{run.path} is not a run folder: it has no recipe.json. "
            "Give the folder that `selfsight pretrain` wrote."
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
    name = _safe(f"{Path(data.split(':')[-1]).stem or 'run'}-{kind}")
    number, path = 1, Path("runs") / name
    while path.exists():
        number += 1
        path = Path("runs") / f"{name}-{number}"
    return path


def _amount(
    share: float | None, per_class: int | None, split_file: str | Path | None
) -> LabelAmount | None:
    """How many labels, if that was said."""
    if share is None and per_class is None and split_file is None:
        return None
    file = Path(split_file) if split_file else None
    return LabelAmount(share=share, per_class=per_class, file=file)


def _safe(name: str) -> str:
    """A name that any file system takes."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def _facts(found: doctors.Examination) -> auto_recipe.Facts:
    if not found.short_side:
        name, why = found.unreadable[0]
        raise UserError(
            f"None of {found.sampled} images read from {found.data} is readable: {name}, for "
            f"one, because {why}. Check the files."
        )
    return auto_recipe.Facts(
        count=found.count, short_side=found.short_side, channels=found.channels
    )


def _console() -> Console:
    return Console(stderr=True, quiet=dist.local_rank() != 0)
