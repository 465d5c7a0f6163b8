"""The command line. Each command is a typed function; torch is imported when one needs it."""

import functools
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro

from sightline.errors import DivergedError, UserError, nearest
from sightline.version import __version__

HELP = f"""sightline {__version__}: learn image encoders from unlabelled pictures,
and prove how good they are.

  sightline pretrain DATA              learn from a folder, a list, Parquet, or "shapes" (built in)
  sightline resume RUN                 go on where a run stopped
  sightline evaluate RUN               kNN and linear accuracy, or label-free measures
  sightline report RUN                 one HTML page: curves, verdict, views, map, neighbours
  sightline doctor DATA                what is in the data, and what would be done with it
  sightline methods                    the methods that exist
  sightline recipes                    the named settings that exist

  sightline COMMAND --help             what a command takes
"""


DataWord = Annotated[str, tyro.conf.arg(metavar="DATA")]
RunFolder = Annotated[Path, tyro.conf.arg(metavar="RUN")]


def pretrain(
    data: DataWord,
    /,
    *,
    method: str | None = None,
    recipe: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    device: str = "auto",
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    classes: Path | None = None,
    labels: bool = False,
    settings: tyro.conf.Suppress[tuple[str, ...]] = (),
) -> None:
    """Learn an encoder from pictures; only the baseline `supervised` learns from labels.

    Every other setting has a flag too: --optim.lr 0.3, --method.temperature 0.1,
    --views.0.blur 0.5. `sightline recipes NAME` lists them with their values.

    Args:
        data: A folder (nested at any depth), a .txt list of files, Parquet files, torchvision:NAME,
            or a built-in set: shapes, digits.
        method: One of `sightline methods`; chosen from the data if not given.
        recipe: One of `sightline recipes`, in place of automatic settings.
        epochs: Passes over the pictures.
        batch_size: Pictures per step over all processes.
        seed: Same seed, same run.
        device: auto, cpu or cuda.
        out: Run folder; runs/NAME-METHOD if not given.
        resume: Start the run, or go on if the folder holds one.
        overwrite: Empty the run folder first.
        classes: File that lists the classes to keep.
        labels: Read labels from sub-folders, to measure with.
    """
    from sightline import api

    api.pretrain(
        data,
        method=method,
        recipe=recipe,
        epochs=epochs,
        batch_size=batch_size,
        seed=seed,
        device=device,
        out=out,
        resume=resume,
        overwrite=overwrite,
        classes=classes,
        labels=labels,
        settings=settings,
    )


def resume(run: RunFolder, /, *, device: str = "auto", method: str | None = None) -> None:
    """Go on where a run stopped; a finished run is left as it is.

    Args:
        run: Run folder.
        device: auto, cpu or cuda.
        method: Repeat `package.module:Name` here to allow a method from outside.
    """
    from sightline import api

    api.resume(run, device=device, method=method)


def evaluate(
    run: RunFolder,
    /,
    *,
    labeled: str | None = None,
    test: str | None = None,
    k: int = 20,
    temperature: float = 0.07,
    device: str = "auto",
    seed: int = 0,
    json: bool = False,
) -> None:
    """Measure a run's encoder beside the untrained one.

    Args:
        run: Run folder.
        labeled: Labelled pictures: a folder with a sub-folder per class, Parquet, or a built-in
            set. Its train/ and val/ or test/ are used if present, else a seeded 80/20 split.
        test: Labelled pictures to test on, if they lie elsewhere.
        k: Number of neighbours that vote.
        temperature: Of the votes.
        device: auto, cpu or cuda.
        seed: Of the split and of the linear probe.
        json: Print JSON instead of a table.
    """
    from sightline import api

    results = api.evaluate(
        run,
        labeled=labeled,
        test=test,
        k=k,
        temperature=temperature,
        device=device,
        seed=seed,
        quiet=json,
    )
    if json:
        _print_json(results)


def report(run: RunFolder, /, *, json: bool = False) -> None:
    """Write one self-contained HTML page about a run.

    Args:
        run: Run folder.
        json: Print what the page says as JSON.
    """
    from sightline import report as pages
    from sightline.runs import Run

    folder = Run(run)
    if not folder.recipe_path.exists():
        raise UserError(f"{run} is not a run folder: it has no recipe.json.{_runs_beside(run)}")
    page = pages.write(folder)
    _print_json(pages.summary(folder)) if json else print(f"Wrote {page}")


def doctor(
    data: DataWord, /, *, device: str = "auto", sample: int = 512, json: bool = False
) -> None:
    """Read a sample of the data and tell what is in it and what recipe would be chosen.

    Args:
        data: Anything that pretrain takes.
        device: auto, cpu or cuda.
        sample: Pictures to read.
        json: Print JSON instead of text.
    """
    from sightline import api

    found = api.doctor(data, device=device, sample=sample, quiet=json)
    if json:
        _print_json(found)


def methods(*, json: bool = False) -> None:
    """List the methods.

    Args:
        json: Print JSON instead of a table.
    """
    from sightline import catalogue

    rows = catalogue.methods()
    _print_json(rows) if json else catalogue.show(rows)


def recipes(name: str | None = None, /, *, method: str | None = None, json: bool = False) -> None:
    """List the named settings, or every flag of one of them.

    Args:
        name: Show this recipe's settings as flags.
        method: Only those of this method.
        json: Print JSON instead of a table.
    """
    from sightline import catalogue

    rows = catalogue.recipes(method) if name is None else catalogue.flags(name)
    _print_json(rows) if json else catalogue.show(rows)


COMMANDS: dict[str, Callable[..., None]] = {
    "pretrain": pretrain,
    "resume": resume,
    "evaluate": evaluate,
    "report": report,
    "doctor": doctor,
    "methods": methods,
    "recipes": recipes,
}


def main(argv: list[str] | None = None) -> None:
    """The `sightline` command: 0 for success, 2 for a user's mistake, 1 for a failure."""
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return
    if words[0] == "--version":
        print(__version__)
        return
    try:
        _run(words[0], words[1:])
    except UserError as mistake:
        print(f"sightline: {mistake}", file=sys.stderr)
        raise SystemExit(2) from None
    except DivergedError as failure:
        print(f"sightline: {failure}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("\nsightline: stopped. `sightline resume RUN` goes on from the last checkpoint.")
        raise SystemExit(130) from None


def _run(name: str, words: list[str]) -> None:
    if name not in COMMANDS:
        raise UserError(
            f'There is no command "{name}".{nearest(name, COMMANDS)} Known: {", ".join(COMMANDS)}.'
        )
    command = COMMANDS[name]
    if name == "pretrain":
        words, settings = split_settings(words)
        command = functools.partial(command, settings=tuple(settings))
    tyro.cli(command, prog=f"sightline {name}", args=words)


def split_settings(words: list[str]) -> tuple[list[str], list[str]]:
    """The words that pretrain itself takes, and those that are settings of the recipe."""
    own = {f"--{name.replace('_', '-')}" for name in inspect.signature(pretrain).parameters}
    known: list[str] = []
    settings: list[str] = []
    into = known
    for word in words:
        if word.startswith("--"):
            flag = word.split("=")[0].replace("_", "-").replace("--no-", "--")
            into = known if flag in own or flag == "--help" else settings
        elif word == "-h":
            into = known
        into.append(word)
    return known, settings


def _runs_beside(path: Path) -> str:
    """Where the nearest run folders are."""
    parent = path.parent if path.parent.is_dir() else Path("runs")
    found = [p.parent.name for p in parent.glob("*/recipe.json")] if parent.is_dir() else []
    return nearest(path.name, found)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
