"""The ledger: one small JSON file for each arm and seed that was trained to the end."""

import hashlib
import json
import tempfile
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from selfsight.check_settings import check_fields, field_types
from selfsight.errors import UserError, quote_word
from selfsight.recipe import Data, Recipe, Start, from_dict, to_dict
from selfsight.run_files.json_files import read_object, to_json, write_json

RESULTS = Path(__file__).with_name("results")  # the ledger that comes with the package
# Settings of a recipe that do not decide its result.
NEUTRAL = (
    *("seed", "repeatable", "log_every", "measure_every"),
    *("keep_epochs", "save_every", "save_steps", "save_minutes"),
)
RESULT = {"accuracy": float, "low": float, "high": float}  # fields of each of an entry's results
CONTEXT_GIB = 2.5  # more than what a CUDA context with its libraries and graphs takes


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A trained arm: settings, code, device, and results."""

    study: str
    arm: str
    scale: str
    seed: int
    scored_on: str
    """test, or held-out: 5,000 of the training images, for tuning."""
    recipe: dict[str, Any]
    recipe_hash: str
    version: dict[str, Any]
    """Version of the package, commit, hash of the sources and of the golden traces."""
    device: str
    command: str
    finished: str
    """Date and time of the end, UTC."""
    images: dict[str, int]
    results: dict[str, dict[str, Any]]
    """knn, knn_200 and linear, each with its interval; empty if training diverged."""
    curve: dict[str, list[float | None]]
    """Columns epoch, seconds, loss, online_knn and its dips, effective_rank, information_bound."""
    seconds: dict[str, float]
    """Wall clock by phase. `startup`, shared by all arms of the process, is not in `total`."""
    images_per_second: float | None
    peak_memory_gib: float | None
    other_memory_gib: float = 0.0
    """GPU memory in use at the end of training that was not ours, our CUDA context included."""
    quick: bool = False
    transfer: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """The same as `results` on each data set of `study --transfer`, by its name."""
    label_free: dict[str, float] = field(default_factory=dict)
    """effective_rank, alpha, alignment, uniformity, lidar and view_variance of the final encoder on
    the images that it is scored on; those of older entries are missing."""
    view_variance: list[int] = field(default_factory=list)
    """Counts of images by the variance of their views, in 50 bins from 0 to 1."""
    data_fingerprint: dict[str, str | int] = field(default_factory=dict)
    """Of the training images: their number, and hashes of names and bytes; new entries only."""
    diverged: str = ""
    """Why training stopped, if the loss or a gradient was no longer finite."""

    @property
    def shared_gpu(self) -> bool:
        """Whether other processes used the GPU too, so that its times say little."""
        return self.other_memory_gib > CONTEXT_GIB

    @property
    def source_images(self) -> int:
        """Training images of its data set, with those that were held out."""
        held_out = self.images["test"] if self.scored_on == "held-out" else 0
        return self.images["train"] + held_out

    @property
    def network(self) -> str:
        """Name of the backbone."""
        name: str = self.recipe["backbone"]["name"]
        return name

    @property
    def epochs(self) -> int:
        """Epochs of the whole training."""
        epochs: int = self.recipe["epochs"]
        return epochs

    @property
    def file_name(self) -> str:
        """Name of its file: study, arm, seed and recipe; held_out if it is for tuning."""
        suffix = (".held_out" if self.scored_on == "held-out" else "") + ".quick" * self.quick
        return f"{self.study}.{self.arm}.seed{self.seed}.{self.recipe_hash}{suffix}.json"

    def write(self, folder: Path) -> Path:
        """Write the entry into a folder."""
        path = folder / self.file_name
        write_json(path, to_json(asdict(self)))
        return path

    def accuracy(self, measure: str) -> float | None:
        """An accuracy in percent; None if it was not measured."""
        result = self.results.get(measure)
        return None if result is None else 100 * result["accuracy"]

    @cached_property
    def trained(self) -> Recipe | None:
        """The settings of its recipe that decide the result; None if one no longer exists.

        A setting that did not exist yet when it was trained gets its default.
        """
        try:
            return comparable(from_dict(self.recipe))
        except UserError:
            return None


def check_writable(folder: Path) -> None:
    """Raise a UserError if results cannot be written to this folder, before anything is trained."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"The ledger {folder} cannot be written: {error.strerror}. Give another folder with "
            "--ledger."
        ) from error


def read_ledger(folders: Iterable[Path] = (RESULTS,)) -> list[Entry]:
    """Read all entries of these folders, each file name once."""
    found: dict[str, Entry] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            found[path.name] = _read_entry(path)
    return list(found.values())


def read_results(scale: str, folder: str | Path | None, package: Path = RESULTS) -> list[Entry]:
    """Read the entries of the package and of a folder, to compare those of a scale.

    If the folder has results on other images than the package, only the folder's are read.
    """
    if folder is None:
        return read_ledger([package])
    if not Path(folder).is_dir():
        name = quote_word(str(folder))
        raise UserError(f"--ledger is {name}, which is not a folder with results.")
    own = [e for e in read_ledger([Path(folder)]) if e.scale == scale and not e.quick]
    counts = sorted({entry.source_images for entry in own})
    if len(counts) > 1:
        raise UserError(
            f"{folder} has results at the scale {scale} on {counts[0]:,} and on {counts[-1]:,} "
            "training images, which are not comparable. Keep them in two folders."
        )
    entries = read_ledger([package, Path(folder)])
    return [e for e in entries if not counts or e.scale != scale or e.source_images in counts]


def _read_entry(path: Path) -> Entry:
    """Read one file; raise a UserError that names it and the field that is wrong."""
    saved = read_object(path)
    if saved is None:
        raise UserError(f"{path} is a link to nothing. Remove it, or restore what it names.")
    declared = field_types(Entry)
    always = [f.name for f in fields(Entry) if f.default is f.default_factory is MISSING]
    check_fields(saved, declared, path, required=always)
    groups = {"results": saved["results"]}
    groups |= {f"transfer.{name}": scores for name, scores in saved.get("transfer", {}).items()}
    for group, results in groups.items():
        for name, result in results.items():
            check_fields(result, RESULT, path, required=[*RESULT], prefix=f"{group}.{name}.")
            if not 0 <= result["low"] <= result["accuracy"] <= result["high"] <= 1:
                raise UserError(
                    f"{path} is damaged: {group}.{name} is {result}; it must be an accuracy from 0 "
                    "to 1 in its interval. Delete the file, and train its arm again."
                )
    required: dict[str, tuple[str, ...]] = {"seconds": ("train", "total")}
    required["images"] = ("train", "test")
    required |= {"curve": ("epoch",)} if saved["curve"] else {}
    required |= {f"transfer.{name}": ("linear",) for name in saved.get("transfer", {})}
    for group, names in required.items():
        found = groups[group] if group in groups else saved[group]
        check_fields(found, {}, path, required=names, prefix=f"{group}.")
    return Entry(**{name: value for name, value in saved.items() if name in declared})


def find_entries(
    entries: Iterable[Entry], recipe: Recipe, *, scale: str, scored_on: str = "test"
) -> dict[int, Entry]:
    """The entries that trained this recipe, by seed, for any study; of several the newest."""
    candidates = [
        entry
        for entry in entries
        if entry.scale == scale and entry.scored_on == scored_on and not entry.quick
    ]
    if not candidates:
        return {}
    wanted = comparable(recipe)
    found = [entry for entry in candidates if entry.trained == wanted]
    return {entry.seed: entry for entry in sorted(found, key=lambda entry: entry.finished)}


def comparable(recipe: Recipe) -> Recipe:
    """Reset settings that do not decide the result: seed, paths, logging, saving."""
    names = ("store_size", "channels", "dtype", "tile")
    data = Data(**{name: getattr(recipe.data, name) for name in names})
    defaults: dict[str, Any] = {f.name: f.default for f in fields(Recipe)}
    return replace(recipe, data=data, **{name: defaults[name] for name in NEUTRAL})


def hash_recipe(recipe: Recipe) -> str:
    """A short hash of all settings that decide the result."""
    settings = to_dict(comparable(recipe))
    if recipe.start == Start():  # hashes are older than this setting
        del settings["start"]
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
