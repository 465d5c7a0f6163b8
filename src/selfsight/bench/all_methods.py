"""Measure every method with the same network and write one table: `selfsight bench --all`.

Further rows are evaluation (embed, linear, fine_tune) and what comes before full speed
(first_step, and first_step_blocks with `compile_blocks`).

A row is one JSON file in the output folder, so that a bench that was stopped continues with the
next row. Rows of other code or another device are measured again: only rows of one sitting are
comparable.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path

import torch
from rich.console import Console

from selfsight.bench.backbone_speed_limit import PassTimes
from selfsight.bench.evaluation_speed import EVALUATIONS, measure_evaluation
from selfsight.bench.first_step import measure_first_step
from selfsight.bench.methods_table import Row, describe_row, render_tables
from selfsight.bench.step_breakdown import measure_breakdown
from selfsight.bench.timer import reset_peak_memory
from selfsight.catalog import build_recipe
from selfsight.data import Source
from selfsight.device import adapt_to_device
from selfsight.errors import UserError, count_noun, suggest
from selfsight.recipe import ALL_METHODS, Data, Recipe, override
from selfsight.recipes import RECIPES
from selfsight.runs.environment import describe_version, device_name
from selfsight.runs.new_run_folder import create_folder
from selfsight.runs.open_run_images import open_recipe_source
from selfsight.terminal.console import open_console
from selfsight.train.memory_forecast import foresee_memory

VIT_S = "mocov3.imagenet_vit_s16_300ep"
# Recipes whose names do not begin like those of the other methods.
SPECIAL = {
    ("moco", "resnet50"): "moco.imagenet_v2_200ep",
    ("swav", "resnet50"): "swav.imagenet_r50_batch256_400ep",  # with the queue of small batches
    ("mocov3", "vit_s"): VIT_S,
}
OTHER_VIEWS = {("msbreg", "resnet18"): (2, 8)}  # beside the recipe's number
FIRST_STEPS: dict[str, tuple[str, ...]] = {  # rows, and the settings of each
    "first_step": (),
    "first_step_blocks": ("--compile-blocks",),
}
OTHER_ROWS = (*EVALUATIONS, *FIRST_STEPS)


@dataclass(frozen=True, kw_only=True)
class Network:
    """A backbone that every method is measured with, as in recipes that begin so."""

    recipes: str
    batch_size: int
    title: str


NETWORKS = {
    "resnet18": Network(recipes="cifar10_r18", batch_size=512, title="ResNet-18, 32 px"),
    "resnet50": Network(recipes="imagenet_r50", batch_size=256, title="ResNet-50, 224 px"),
    "vit_s": Network(recipes="imagenet_r50", batch_size=512, title="ViT-S/16, 224 px"),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A row to measure; `views` replaces the number of views of its recipe."""

    network: str
    method: str
    recipe: str
    views: int | None = None

    @property
    def name(self) -> str:
        """Method, and number of views where it is not the recipe's."""
        return self.method if self.views is None else f"{self.method}, {self.views} views"

    def path(self, folder: Path) -> Path:
        """The file of this row."""
        return folder / self.network / f"{self.name.replace(', ', '_').replace(' ', '_')}.json"

    def build(self, batch_size: int | None, flags: Sequence[str]) -> Recipe:
        """Build the recipe, with the network's backbone and batch."""
        recipe = build_recipe(self.recipe)
        if self.network == "vit_s":
            recipe = replace(recipe, backbone=build_recipe(VIT_S).backbone)
        views = () if self.views is None else ("--method.num-views", str(self.views))
        given = {"batch_size": batch_size or NETWORKS[self.network].batch_size}
        return override(recipe, given, (*views, *flags), command="bench --all")


def list_cases(only: Sequence[str] = ()) -> list[Case]:
    """List the rows of the table; `only` names networks and methods to choose."""
    kinds = [*ALL_METHODS, *OTHER_ROWS]
    for name in only:
        if name not in (names := [*NETWORKS, *kinds]):
            raise UserError(
                f'--only "{name}" is not a network or row.{suggest(name, names)} '
                f"Known: {', '.join(names)}."
            )
    networks = [name for name in NETWORKS if name in only] or list(NETWORKS)
    methods = [name for name in kinds if name in only] or kinds
    cases = [case for network in networks for method in methods for case in _cases(method, network)]
    if not cases:
        raise UserError(
            f"--only {' '.join(only)} selects no row: there is no recipe of this method for images "
            "of that size. Omit the network, or name another."
        )
    return cases


def _cases(method: str, network: str) -> Iterator[Case]:
    if method in OTHER_ROWS:  # with the recipe of a baseline that has labels, or of MoCo
        of = "supervised" if method in EVALUATIONS else "mocov3" if network == "vit_s" else "moco"
        yield replace(next(_cases(of, network)), method=method)
        return
    beginning = f"{method}.{NETWORKS[network].recipes}"
    default = next((name for name in RECIPES if name.startswith(beginning)), None)
    special = SPECIAL.get((method, network), SPECIAL.get((method, "resnet50"), default))
    recipe = default if network == "resnet18" else special
    if recipe is None:  # no recipe for images of this size
        return
    for views in (None, *OTHER_VIEWS.get((method, network), ())):
        yield Case(network=network, method=method, recipe=recipe, views=views)


def measure_all(
    folder: Path,
    device: torch.device,
    *,
    data_for: Callable[[Recipe], str],
    only: Sequence[str],
    batch_size: int | None,
    flags: Sequence[str],
    seconds: float,
    minutes: float | None,
    console: Console,
) -> list[Row]:
    """Measure the rows that are not in the folder yet, as many as fit in the minutes."""
    began, longest = time.monotonic(), 0.0
    cases = list_cases(only)
    setting = {
        "device": device_name(device),
        "sources": describe_version()["sources"],
        "batch_size": batch_size,
        "flags": list(flags),
    }
    todo = [case for case in cases if not _is_measured(case.path(folder), setting)]
    done = len(cases) - len(todo)
    create_folder(folder)
    rows = count_noun(len(cases), "row")
    console.print(f"{rows}, {done} of them in {folder}", highlight=False)
    if device.type == "cpu" and batch_size is None and todo:
        console.print(
            "On a CPU a row with a GPU's batches takes many minutes. --batch-size 16 is faster.",
            highlight=False,
            soft_wrap=True,
        )
    times: PassTimes = {}
    sources: dict[Data, Source] = {}  # the built-in set takes seconds to draw

    def prepare(case: Case) -> tuple[Recipe, Source]:
        return _prepare(case, device, data_for, batch_size, flags, sources)

    for i, case in enumerate(todo):
        spent = time.monotonic() - began
        if minutes is not None and i and spent + longest > 60 * minutes:
            console.print(
                f"Time is up with {count_noun(len(todo) - i, 'row')} left. "
                "Repeat the command to continue.",
                highlight=False,
            )
            break
        title = NETWORKS[case.network].title
        console.print(f"    measuring {case.name} with {title} ...", highlight=False)
        row = _measure(case, device, prepare, flags, seconds, times)
        longest = max(longest, row["seconds"])
        row |= {"setting": setting, "version": describe_version()}
        path = case.path(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(row, indent=2))
        part.replace(path)
        console.print(f"{done + i + 1:>3} {describe_row(row)}", highlight=False, soft_wrap=True)
    measured = {case: old for case in list_cases() if (old := _read_row(case.path(folder)))}
    # Rows that other calls have measured in the same way are in the table too.
    alike = [row for row in measured.values() if row["setting"] == setting]
    titles = {name: network.title for name, network in NETWORKS.items()}
    (folder / "table.md").write_text(render_tables(alike, titles))
    return [measured[case] for case in cases if case in measured]


def _read_row(path: Path) -> Row | None:
    """Read the file of a row; None if there is none that can be read."""
    try:
        row: Row = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return row if "setting" in row else None


def _is_measured(path: Path, setting: Row) -> bool:
    """Whether a row was measured with this code, on this device, with these options."""
    row = _read_row(path)
    return row is not None and "error" not in row and row["setting"] == setting


def _prepare(
    case: Case,
    device: torch.device,
    data_for: Callable[[Recipe], str],
    batch_size: int | None,
    flags: Sequence[str],
    sources: dict[Data, Source],
) -> tuple[Recipe, Source]:
    """Build the recipe of a row for this device, and open its images."""
    recipe = case.build(batch_size, flags)
    if device.type == "cuda":
        recipe = replace(recipe, compile=True)
    recipe, _ = adapt_to_device(recipe, device)
    labels = recipe.data.labels or recipe.method.needs_labels
    data = replace(recipe.data, path=data_for(recipe), labels=labels)
    recipe = replace(recipe, data=data)
    if data not in sources:
        sources[data] = open_recipe_source(recipe)
    return recipe, sources[data]


def _measure(
    case: Case,
    device: torch.device,
    prepare: Callable[[Case], tuple[Recipe, Source]],
    flags: Sequence[str],
    seconds: float,
    times: PassTimes,
) -> Row:
    """Measure one row; if that is impossible, it has the reason."""
    began = time.monotonic()
    row: Row = {"network": case.network, "name": case.name, "recipe": case.recipe}
    try:
        recipe, source = prepare(case)
        if case.method in FIRST_STEPS:
            row["first_step"] = measure_first_step(
                case.recipe,
                recipe.data.path,
                device.type,
                batch_size=recipe.batch_size,
                flags=(*flags, *FIRST_STEPS[case.method]),
                seconds=seconds,
            )
        elif case.method in EVALUATIONS:
            result = measure_evaluation(
                case.method, recipe, source, device, seconds=seconds, times=times
            )
            row["result"] = asdict(result)
        else:
            row["foreseen"] = foresee_memory(recipe, len(source), device).peak
            result = measure_breakdown(
                case.recipe,
                recipe,
                device,
                seconds=seconds,
                console=open_console(quiet=True),
                brief=True,
                times=times,
                source=source,
            )
            row["result"] = asdict(result)
    except Exception as error:  # such as memory: the other rows are measured
        row |= {"error": str(error).strip().split("\n")[0] or type(error).__name__}
    reset_peak_memory(device)  # what is left of this row would count for the next
    return row | {
        "seconds": time.monotonic() - began,
        "date": date.today().isoformat(),
        "torch": torch.__version__,
    }
