"""The command line. Each command is a typed function; torch is imported when one needs it."""

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro

from selfsight.errors import DivergedError, UserError, nearest
from selfsight.version import __version__

HELP = f"""selfsight {__version__}: learn image encoders from unlabeled images,
and prove how good they are.

  selfsight pretrain DATA              learn from a folder, a list, Parquet, or "shapes" (built in)
  selfsight resume RUN                 go on where a run stopped
  selfsight evaluate RUN...            kNN, linear, few labels, fine-tuning, ... by name
  selfsight report RUN                 one HTML page: curves, verdict, views, map, neighbors
  selfsight doctor DATA                what is in the data, and what would be done with it
  selfsight bench                      how fast training is here, and what limits it
  selfsight methods                    the methods that exist
  selfsight recipes                    the named settings that exist

  selfsight COMMAND --help             what a command takes
"""


DataWord = Annotated[str, tyro.conf.arg(metavar="DATA")]
RunFolder = Annotated[Path, tyro.conf.arg(metavar="RUN")]
RunFolders = Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN...")]


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
    """Learn an encoder from images; only the baseline `supervised` learns from labels.

    Every other setting has a flag too: --optim.lr 0.3, --method.temperature 0.1,
    --views.0.blur 0.5. `selfsight recipes NAME` lists them with their values.

    Args:
        data: A folder (nested at any depth), a .txt list of files, Parquet files, torchvision:NAME,
            or a built-in set: shapes, digits.
        method: One of `selfsight methods`; chosen from the data if not given.
        recipe: One of `selfsight recipes`, in place of automatic settings.
        epochs: Passes over the images.
        batch_size: Images per step over all processes.
        seed: Same seed, same run.
        device: auto, cpu or cuda.
        out: Run folder; runs/NAME-METHOD if not given.
        resume: Start the run, or go on if the folder holds one.
        overwrite: Empty the run folder first.
        classes: File that lists the classes to keep.
        labels: Read labels from sub-folders, to measure with.
    """
    from selfsight import api

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
    from selfsight import api

    api.resume(run, device=device, method=method)


def evaluate(
    runs: RunFolders = (),
    /,
    *,
    labeled: str | None = None,
    test: str | None = None,
    protocol: tuple[str, ...] = (),
    k: tuple[int, ...] = (20, 200),
    temperature: float = 0.07,
    features: str = "backbone",
    backbone: str | None = None,
    image_size: int | None = None,
    part: str | None = None,
    trust: bool = False,
    against: tuple[str, ...] = (),
    untrained: bool = True,
    epochs: int | None = None,
    iterations: int | None = None,
    batch_size: int | None = None,
    share: float | None = None,
    per_class: int | None = None,
    split_file: Path | None = None,
    out: Path | None = None,
    compare: bool = False,
    protocols: bool = False,
    device: str = "auto",
    seed: int = 0,
    json: bool = False,
    settings: tyro.conf.Suppress[tuple[str, ...]] = (),
) -> None:
    """Measure the encoder of one or more runs, or any other, beside the untrained one.

    Settings of a protocol that trains have flags too: --head.lr 0.3, --strong.mixup 0,
    --set.rates 0.1 1 10.

    Args:
        runs: Run folders.
        labeled: Labeled images: a folder with a sub-folder per class, Parquet, or a built-in
            set. Its train/ and val/ or test/ are used if present, else a seeded 80/20 split.
        test: Labeled images to test on, if they lie elsewhere.
        protocol: What to measure, by names of --protocols; kNN and linear if not given, or what
            needs no labels where there are none.
        k: Of kNN: one or more numbers of neighbors that vote.
        temperature: Of kNN: a neighbor's vote is exp(similarity / temperature).
        features: What is measured: backbone, or projector (of a run).
        backbone: Any encoder in place of a run: timm:NAME, torchvision:NAME, a file of weights
            (also published checkpoints), or NETWORK=FILE.
        image_size: Side in pixels of what the network is shown; its own if not given.
        part: Which encoder of a file that holds several, by the names before its own.
        trust: Let files of weights run code while they are read. Only if you trust the writer.
        against: Runs or backbones whose numbers stand beside, such as a supervised one.
        untrained: Measure the untrained network too.
        epochs: Shorter or longer than published; warm-up and steps keep their shares.
        iterations: The same, for protocols that count them (detection).
        batch_size: Images per step over all processes, if other than published.
        share: For few_labels: this share of the labels, 0.01 for 1 %.
        per_class: For few_labels: so many labels of each class.
        split_file: For few_labels: a text file of the labeled images, a name on each line.
        out: Folder for the results of --backbone; runs/NAME if not given.
        compare: Print one table over all given runs from what they hold; measures nothing.
        protocols: List the protocols with their settings and sources.
        device: auto, cpu or cuda.
        seed: Of splits, and of what is trained or drawn.
        json: Print JSON instead of a table.
    """
    if protocols:
        from selfsight import catalog
        from selfsight.evals.protocols import listing

        _print_json(listing()) if json else catalog.show(listing())
        return
    from selfsight import api

    if not runs and backbone is None:
        raise UserError("Give one or more run folders, or --backbone. See: selfsight evaluate -h")
    if compare:
        rows = api.compare(runs, quiet=json)
        if json:
            _print_json(rows)
        return
    results = {
        str(run or backbone): api.evaluate(
            run,
            labeled=labeled,
            test=test,
            protocols=protocol,
            k=k,
            temperature=temperature,
            features=features,
            backbone=backbone,
            image_size=image_size,
            part=part,
            trust=trust,
            against=against,
            untrained=untrained,
            epochs=epochs,
            iterations=iterations,
            batch_size=batch_size,
            share=share,
            per_class=per_class,
            split_file=split_file,
            settings=settings,
            out=out,
            device=device,
            seed=seed,
            quiet=json,
        )
        for run in runs or (None,)
    }
    if json:
        _print_json(results if len(results) > 1 else next(iter(results.values())))


def report(run: RunFolder, /, *, json: bool = False) -> None:
    """Write one self-contained HTML page about a run.

    Args:
        run: Run folder.
        json: Print what the page says as JSON.
    """
    from selfsight import report as pages
    from selfsight.run_folder import Run

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
        sample: Images to read.
        json: Print JSON instead of text.
    """
    from selfsight import api

    found = api.doctor(data, device=device, sample=sample, quiet=json)
    if json:
        _print_json(found)


def bench(
    recipe: Annotated[str | None, tyro.conf.arg(metavar="RECIPE")] = None,
    /,
    *,
    data: str | None = None,
    device: str = "auto",
    batch_size: int | None = None,
    seconds: float = 2.0,
    against: str | None = None,
    growth: bool = False,
    json: bool = False,
    settings: tyro.conf.Suppress[tuple[str, ...]] = (),
) -> None:
    """Measure how fast a recipe trains here, part by part, beside its network alone.

    Settings of the recipe have flags as in pretrain: --method.bn sync, --data.keep stream.

    Args:
        recipe: One of `selfsight recipes`; a small one if not given.
        data: Images to measure with, as pretrain takes them; generated ones if not given.
        device: auto, cpu or cuda.
        batch_size: Images per step.
        seconds: About how long each part is repeated.
        against: "lightly" runs the same training with Lightly's own parts.
        growth: How a step grows with batch, queue, views, images and processes, not its parts.
        json: Print JSON instead of text.
    """
    from selfsight import bench as benches

    found = benches.run(
        recipe,
        data,
        device=device,
        batch_size=batch_size,
        seconds=seconds,
        against=against,
        growing=growth,
        settings=settings,
        quiet=json,
    )
    if json:
        _print_json(found)


def methods(*, json: bool = False) -> None:
    """List the methods.

    Args:
        json: Print JSON instead of a table.
    """
    from selfsight import catalog

    rows = catalog.methods()
    _print_json(rows) if json else catalog.show(rows)


def recipes(name: str | None = None, /, *, method: str | None = None, json: bool = False) -> None:
    """List the named settings, or every flag of one of them.

    Args:
        name: Show this recipe's settings as flags.
        method: Only those of this method.
        json: Print JSON instead of a table.
    """
    from selfsight import catalog

    rows = catalog.recipes(method) if name is None else catalog.flags(name)
    _print_json(rows) if json else catalog.show(rows)


COMMANDS: dict[str, Callable[..., None]] = {
    "pretrain": pretrain,
    "resume": resume,
    "evaluate": evaluate,
    "report": report,
    "doctor": doctor,
    "bench": bench,
    "methods": methods,
    "recipes": recipes,
}


def main(argv: list[str] | None = None) -> None:
    """The `selfsight` command: 0 for success, 2 for a user's mistake, 1 for a failure."""
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
        print(f"selfsight: {mistake}", file=sys.stderr)
        raise SystemExit(2) from None
    except DivergedError as failure:
        print(f"selfsight: {failure}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("\nselfsight: stopped. `selfsight resume RUN` goes on with a run that was training.")
        raise SystemExit(130) from None


def _run(name: str, words: list[str]) -> None:
    if name not in COMMANDS:
        raise UserError(
            f'There is no command "{name}".{nearest(name, COMMANDS)} Known: {", ".join(COMMANDS)}.'
        )
    command = COMMANDS[name]
    if "settings" in inspect.signature(command).parameters:
        words, settings = split_settings(words, command)
        command = functools.partial(command, settings=tuple(settings))
    tyro.cli(command, prog=f"selfsight {name}", args=words)


def split_settings(
    words: list[str], command: Callable[..., None] = pretrain
) -> tuple[list[str], list[str]]:
    """The words that a command itself takes, and those that are settings beneath it."""
    own = {f"--{name.replace('_', '-')}" for name in inspect.signature(command).parameters}
    known: list[str] = []
    settings: list[str] = []
    into = known
    for word in words:
        if word.startswith("--"):
            flag = word.split("=")[0].replace("_", "-").replace("--no-", "--")
            # Evaluation takes only settings of settings: a slip of its own words is told as such.
            mine = flag in own or flag == "--help" or (command is evaluate and "." not in flag)
            into = known if mine else settings
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
    if os.environ.get("RANK", "0") == "0":  # torchrun starts several of us
        print(json.dumps(value, indent=2))
