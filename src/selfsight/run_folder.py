"""The run folder: what its files are called, and how they are read and written."""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Write beside, then rename, so that a kill never leaves half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n")
    os.replace(beside, path)


def read_json(path: Path) -> Any | None:
    """The value in a JSON file, or None if there is no such file."""
    return json.loads(path.read_text()) if path.exists() else None


@dataclass(frozen=True)
class Run:
    """A folder that holds one pretraining run."""

    path: Path

    @property
    def recipe_path(self) -> Path:
        """Everything that decided what the run computed."""
        return self.path / "recipe.json"

    @property
    def log_path(self) -> Path:
        """One JSON record per line."""
        return self.path / "log.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of `last.pt` and the one before."""
        return self.path / "checkpoints"

    @property
    def results(self) -> Path:
        """Folder of one JSON file per evaluation."""
        return self.path / "results"

    @property
    def images(self) -> Path:
        """Folder of views, map and neighbors."""
        return self.path / "images"

    @property
    def report(self) -> Path:
        """The page a person opens."""
        return self.path / "report.html"

    def log(self, record: dict[str, Any]) -> None:
        """Append one record."""
        with self.log_path.open("a") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """All complete log records; a half-written last line is left out."""
        if not self.log_path.exists():
            return []
        lines = self.log_path.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines if line]

    def keep_records(self, until_step: int) -> None:
        """Drop records after this step, so that a resumed run logs each step once."""
        kept = [r for r in self.records() if r["step"] <= until_step]
        beside = self.log_path.with_name("log.jsonl.part")
        beside.write_text("".join(json.dumps(r) + "\n" for r in kept))
        os.replace(beside, self.log_path)

    def result(self, name: str) -> dict[str, Any] | None:
        """What one evaluation wrote, or None."""
        return read_json(self.results / f"{name}.json")

    def write_result(self, name: str, value: dict[str, Any]) -> None:
        """Keep what one evaluation found."""
        write_json(self.results / f"{name}.json", value)

    def results_all(self) -> dict[str, dict[str, Any]]:
        """Every result by name."""
        return {p.stem: json.loads(p.read_text()) for p in sorted(self.results.glob("*.json"))}

    def image_json(self, name: str) -> dict[str, Any] | None:
        """What lies where in a sheet of images, or None."""
        return read_json(self.images / f"{name}.json")

    def write_image_json(self, name: str, value: dict[str, Any]) -> None:
        """Say what lies where in a sheet of images."""
        write_json(self.images / f"{name}.json", value)


def plain(value: Any) -> Any:
    """The same as JSON can hold it: None for numbers that are not finite, paths as words."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
