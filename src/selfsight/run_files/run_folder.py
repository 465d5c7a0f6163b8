"""The run folder: names of its files, and how they are read and written."""

import glob
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfsight.check_settings import RESTORE, check_fields, check_setting
from selfsight.errors import UserError, quote_word, suggest
from selfsight.run_files.json_files import (
    append_to_file,
    check_object,
    explain_write_errors,
    is_finite,
    read_bytes,
    read_json,
    read_json_lines,
    read_object,
    replace_file,
    write_json,
    write_json_lines,
)
from selfsight.run_files.run_results import COMPARED_SETTINGS, check_result

if TYPE_CHECKING:
    from numpy import ndarray

LOCK = "lock"  # file that the process which writes to a run folder has locked
ABOUT_RUN = {  # what recipe.json holds beside the settings
    "images": int,
    "num_classes": int,
    "skipped": int,
    "left_out": dict[str, str],
    "changed": list[str],
    "device": str,
    "processes": int,
    "versions": dict[str, str | int | None],
    "environment": dict[str, str | int | bool | list[str] | None],
    "reasons": dict[str, str],
    "data_fingerprint": dict[str, str | int],
    "outside_code": dict[str, str],
}
PARTS = {"method", "backbone", "data", "optim"}  # settings of recipe.json that hold settings
SEED_AND_RECORDS = {"seed", *ABOUT_RUN} - {"data_fingerprint"}  # what seeds of a recipe differ in
DAMAGED_ARCHIVE = (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)
RECORD = {"step": int, "epoch": float, "time": float | None, "online_knn": float | None}
EVENT = {"step": int, "event": str, "differs": list[str]}
MAX_EVENTS = 200  # a run in fp16 skips a step every few thousand


@dataclass(frozen=True)
class Run:
    """The folder of one pretraining run."""

    path: Path
    track: Callable[[dict[str, Any]], None] | None = field(default=None, compare=False, repr=False)

    @property
    def shell_path(self) -> str:
        """The folder quoted for a command line, and never parsed as a flag."""
        return quote_word(str(self.path))

    @property
    def recipe_path(self) -> Path:
        """File of the resolved recipe and the versions of the run."""
        return self.path / "recipe.json"

    @property
    def log_path(self) -> Path:
        """File of the log, one JSON record per line."""
        return self.path / "log.jsonl"

    @property
    def events_path(self) -> Path:
        """File of events during training: skipped steps, divergence, collapse."""
        return self.path / "events.jsonl"

    @property
    def seconds_path(self) -> Path:
        """File of how time was spent, one JSON record per process that trained."""
        return self.path / "seconds.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of `last.pt`, the checkpoint before it, and those of chosen epochs."""
        return self.path / "checkpoints"

    @property
    def kept_epochs(self) -> list[int]:
        """Epochs whose checkpoints were kept, in order."""
        numbers = (path.stem.removeprefix("epoch_") for path in self.checkpoints.glob("epoch_*.pt"))
        return sorted(int(number) for number in numbers if number.isdecimal())

    def kept_checkpoint(self, epoch: int) -> Path:
        """File of the checkpoint that was kept after this epoch."""
        return self.checkpoints / f"epoch_{epoch}.pt"

    @property
    def untrained_statistics(self) -> Path:
        """File of the batch-norm statistics that the images give the initial weights."""
        return self.checkpoints / "untrained_statistics.safetensors"

    @property
    def start_weights(self) -> Path:
        """File of the weights that the backbone started from, if they were not random."""
        return self.path / "start.safetensors"

    @property
    def overwritten(self) -> Path:
        """Folder of the run that this one overwrites, until it saves its first checkpoint."""
        return self.path / "overwritten"

    @property
    def results(self) -> Path:
        """Folder with one JSON file per evaluation."""
        return self.path / "results"

    @property
    def images(self) -> Path:
        """Folder of the image sheets: views, map and neighbors."""
        return self.path / "images"

    @property
    def report(self) -> Path:
        """File of the HTML report."""
        return self.path / "report.html"

    def saved_recipe(self) -> dict[str, Any]:
        """Read the settings of the run, and what was recorded beside them."""
        saved = read_object(self.recipe_path) or {}
        check_fields(saved, ABOUT_RUN, self.recipe_path)
        for name in PARTS & saved.keys():
            check_object(saved[name], f"{self.recipe_path} ({name})")
        if fingerprint := saved.get("data_fingerprint"):
            parts = ("images", "names", "bytes")
            check_fields(
                fingerprint, {}, self.recipe_path, required=parts, prefix="data_fingerprint."
            )
        environment = saved.get("environment", {})
        check_fields(environment, {"threads": int}, self.recipe_path, prefix="environment.")
        return saved

    def log(self, record: dict[str, Any]) -> None:
        """Append one record to the log."""
        with explain_write_errors(self.log_path):
            append_to_file(self.log_path, json.dumps(record, allow_nan=False) + "\n")
        if self.track is not None:
            self.track(record)

    def log_seconds(self, record: dict[str, float]) -> None:
        """Append how the time of this process was spent."""
        with explain_write_errors(self.seconds_path):
            append_to_file(self.seconds_path, json.dumps(record) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """Read all complete log records; a half-written last line is ignored."""
        return _read_records(self.log_path, RECORD, required=("step", "epoch"))

    def truncate_log(self, until_step: int) -> None:
        """Drop records and events after this step, so that a resumed run logs each step once."""
        write_json_lines(self.log_path, [r for r in self.records() if r["step"] <= until_step])
        if events := self.events():
            write_json_lines(self.events_path, [e for e in events if e["step"] <= until_step])

    def add_event(self, event: dict[str, Any]) -> None:
        """Append one event; only the newest are kept."""
        write_json_lines(self.events_path, [*self.events(), event][-MAX_EVENTS:])

    def events(self) -> list[dict[str, Any]]:
        """Read the events of training, oldest first."""
        return _read_records(self.events_path, EVENT, required=("step", "event"))

    def logged_seconds(self) -> float:
        """Return the seconds of training so far: of processes that ended, or of the last record.

        Records are steps apart, so that a process that was stopped has spent more than they say;
        one that was killed has noted nothing else.
        """
        logged = max((r.get("time") or 0.0 for r in self.records()[-1:]), default=0.0)
        ended = [spent for _, spent in read_json_lines(self.seconds_path)]
        training = ("compile", "graph", "steps", "saving", "evaluation")
        spent = sum(one[phase] for one in ended for phase in training if is_finite(one.get(phase)))
        return float(max(logged, spent))

    def result(self, name: str) -> dict[str, Any] | None:
        """Read the result of one evaluation; None if there is none.

        `DATA/knn` names the result of one data set; `knn` works if there is only one.
        """
        path = self._find_result(name, ".json")
        result = read_object(path)
        check_result(result or {}, path.stem, path)
        return result

    def write_result(self, name: str, value: dict[str, Any]) -> None:
        """Write the result of one evaluation."""
        write_json(self.results / f"{name}.json", value)

    def arrays(self, name: str) -> "dict[str, ndarray] | None":
        """Read the outcome of an evaluation for each image; None if there is none."""
        import numpy as np

        path = self._find_result(name, ".npz")
        if not path.exists():
            return None
        try:
            with np.load(io.BytesIO(read_bytes(path))) as file:
                arrays = dict(file)
            missing = {"fingerprint", "encoders", "n"} - arrays.keys()
        except DAMAGED_ARCHIVE as error:
            raise UserError(f"{path} is damaged: {error}. {RESTORE}") from error
        if missing:
            raise UserError(f"{path} is damaged: it has no {min(missing)}. {RESTORE}")
        return arrays

    def write_arrays(self, name: str, arrays: "dict[str, ndarray]") -> None:
        """Write the outcome of an evaluation for each image, beside its result."""
        import numpy as np

        path = self.results / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    def _find_result(self, name: str, suffix: str) -> Path:
        path = self.results / f"{name}{suffix}"
        if path.exists() or "/" in name:
            return path
        found = sorted(self.results.glob(f"*/{glob.escape(name)}{suffix}"))
        if len(found) > 1:
            names = ", ".join(f"{path.parent.name}/{name}" for path in found)
            raise UserError(f"{self.path} has {name} of {len(found)} data sets. Name one: {names}.")
        return found[0] if found else path

    def all_results(self) -> dict[str, dict[str, Any]]:
        """Read every result, by its name: `DATA/knn`, or `online_knn` of its training images."""
        paths = sorted([*self.results.glob("*.json"), *self.results.glob("*/*.json")])
        names = [path.relative_to(self.results).with_suffix("").as_posix() for path in paths]
        return {name: self.result(name) or {} for name in names}

    def image_json(self, name: str) -> dict[str, Any] | None:
        """Read the layout of an image sheet; None if there is none."""
        return read_json(self.images / f"{name}.json")

    def write_image_json(self, name: str, value: dict[str, Any]) -> None:
        """Write the layout of an image sheet."""
        write_json(self.images / f"{name}.json", value)


def _read_records(
    path: Path, declared: dict[str, Any], *, required: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Read an object from each line and check its declared fields."""
    values = []
    for source, value in read_json_lines(path):
        if not _are_numbers(value, declared):
            check_fields(value, declared, source, required=required)
        values.append(value)
    return values


def _are_numbers(value: dict[str, Any], declared: dict[str, Any]) -> bool:
    """Whether all declared fields are finite numbers: quick, for logs of a million lines."""
    if type(value.get("step")) is not int or "epoch" not in value:
        return False
    found = (value[name] for name in declared if name in value)
    return all(map(is_finite, found))


def select_settings(saved: dict[str, Any], *, with_seed: bool = False) -> dict[str, Any]:
    """Select the settings of a recipe.json that runs with different seeds share."""
    left_out = {*ABOUT_RUN} if with_seed else SEED_AND_RECORDS
    return {name: value for name, value in saved.items() if name not in left_out}


def group_seeds(
    recipes: Mapping[str, dict[str, Any]], results: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, list[str]]]:
    """Group runs that differ in the seed alone, and whose result was measured alike.

    Both are by the name of the run. A group has two seeds or more, each with its runs.
    """
    groups: dict[str, dict[str, list[str]]] = {}
    for run, result in results.items():
        if recipe := recipes[run]:
            settings = result.get("settings", {})
            alike = (select_settings(recipe), [settings.get(key) for key in COMPARED_SETTINGS])
            seeds = groups.setdefault(repr(alike), {})
            seeds.setdefault(str(recipe.get("seed")), []).append(run)
    return [seeds for seeds in groups.values() if len(seeds) > 1]


def open_run(run: Run | str | Path) -> Run:
    """Return the run of a folder; raise a UserError if the folder holds none."""
    check_setting("run", run, Run | str | Path)
    run = run if isinstance(run, Run) else Run(Path(run))
    if not run.recipe_path.exists():
        whole = Run(run.path.parent.parent)
        if run.path.parent == whole.checkpoints and whole.recipe_path.exists():
            raise UserError(
                f"{run.path} is one checkpoint of the run {whole.path}. Give the run, or to "
                f"evaluate this checkpoint: --backbone {run.path} --out FOLDER."
            )
        parent = run.path.parent if run.path.parent.is_dir() else Path("runs")
        names = [file.parent.name for file in parent.glob("*/recipe.json")]
        similar = suggest(run.path.name, names)
        raise UserError(
            f"{run.path} is not a run folder: it has no recipe.json.{similar} "
            "Give the folder that `selfsight pretrain` wrote (its `--out`)."
        )
    return run
