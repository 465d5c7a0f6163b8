"""Results of a run by data set: their names, their fields, and the main number of each.

The file results/DATA/NAME.json is the result DATA/NAME, of the labeled images DATA. A result
without DATA is of the images that the run was trained on.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from selfsight.check_settings import check_fields

Json = Any  # a value of json.loads
Results = Mapping[str, Mapping[str, Json]]  # by name
RESULT: dict[str, Any] = {  # fields that any result may have
    "settings": dict[str, Any],
    "differences": dict[str, dict[str, dict[str, Any]]],
    "per_class": dict[str, dict[str, Any]],
    "against": dict[str, dict[str, Any]],
    "n": int,
}
FIELDS_OF_RESULT: dict[str, dict[str, Any]] = {  # those that are read from one result, by its name
    "label_free": {"effective_rank": dict[str, Any], "retrieval": dict[str, Any]},
    "verdict": {"verdict": str, "sentence": str, "evidence": list[dict[str, Any]]},
}
DATA_SET = {"name": str, "fingerprint": str, "images": int}  # fields of settings.data_set
HEADLINES = ("accuracy", "map", "box_AP")  # the main number of a result is the first that it has
# Settings that must agree for the numbers of two results to be comparable.
COMPARED_SETTINGS = (
    *("label_column", "num_classes", "train", "test"),
    *("features", "view", "view_settings"),
)
ANALYSIS = "analysis"  # of any images: without labels, they have another fingerprint


class DataSet(NamedTuple):
    """The images that a result was measured on."""

    name: str
    fingerprint: str
    images: int = 0

    @property
    def folder(self) -> str:
        """Folder of its results: sets of one name have different fingerprints."""
        return f"{self.name}-{self.fingerprint[:8]}"


TRAINING = DataSet("training images", "")  # of the run itself


def check_result(result: dict[str, Json], name: str, source: object) -> None:
    """Raise a UserError if a field of a result does not have its declared type."""
    check_fields(result, RESULT | FIELDS_OF_RESULT.get(name, {}), source)
    about = result.get("settings", {}).get("data_set")
    if about is not None:
        check_fields({"settings.data_set": about}, {"settings.data_set": dict[str, Any]}, source)
        check_fields(about, DATA_SET, source, required=tuple(DATA_SET), prefix="settings.data_set.")


def find_headline(result: Mapping[str, Json]) -> tuple[str, float] | None:
    """Find the main number of a result, with its name."""
    for name in HEADLINES:
        if isinstance(value := result.get(name), int | float):
            return name, float(value)
    return None


def find_data_set(name: str, result: Mapping[str, Json]) -> DataSet | None:
    """The labeled images of a result; None if it is of the images that the run was trained on."""
    folder = name.rpartition("/")[0]
    about = result.get("settings", {}).get("data_set") or {}
    if about:
        return DataSet(*(about[key] for key in DATA_SET))
    return DataSet(folder, "") if folder else None


def find_training_data(recipe: Mapping[str, Json]) -> DataSet:
    """The images that a run was trained on, as far as its recipe.json says."""
    path = str((recipe.get("data") or {}).get("path", ""))
    found = recipe.get("data_fingerprint") or {}
    hashes = "-".join(str(found[key]) for key in ("names", "bytes") if key in found)
    name = Path(path.split(":")[-1]).stem or TRAINING.name
    return DataSet(name, hashes or path, int(recipe.get("images") or 0))


def name_results(
    results: Mapping[str, Results], trained_on: Mapping[str, DataSet] | None = None
) -> dict[str, dict[str, str]]:
    """Names of the results of several runs, such that equal names can be compared.

    A result is named after its protocol, and also its data set if there are several.
    """
    members: dict[str, list[tuple[str, str, DataSet]]] = {}  # by kind
    for run, of_run in results.items():
        for name, result in of_run.items():
            data = find_data_set(name, result)
            kind = ANALYSIS if name.endswith(ANALYSIS) else "training" if data is None else "test"
            data = data or (trained_on or {}).get(run) or TRAINING
            members.setdefault(kind, []).append((run, name, data))
    named: dict[str, dict[str, str]] = {run: {} for run in results}
    for of_kind in members.values():
        sets = {images.fingerprint: images for *_, images in reversed(of_kind)}  # first of each
        names = [images.name for images in sets.values()]
        for run, name, images in of_kind:
            first, called = sets[images.fingerprint], name.rpartition("/")[2]
            if len(sets) > 1:
                called += f" on {first.name if names.count(first.name) == 1 else first.folder}"
            named[run][called] = name
    return named


def put_main_first(results: Results, data_path: str) -> tuple[dict[str, Json], str]:
    """Call the results of the main data set by their protocols, and others `knn on NAME`.

    The main data set is one with kNN or the linear probe of both networks, from which the verdict
    comes, if there is one: the one that the run was trained on, else the one with the most test
    images. Also returns its name, if there are several.
    """
    ranks: dict[str, tuple[bool, bool, int]] = {}
    for name, result in results.items():
        path = str(result.get("settings", {}).get("data") or "")
        is_trained_on = bool(path) and os.path.realpath(path) == os.path.realpath(data_path)
        folder, _, protocol = name.rpartition("/")
        can_judge = protocol in ("knn", "linear") and "untrained_accuracy" in result
        rank = (can_judge, is_trained_on, result.get("n") or 0)
        ranks[folder] = max(ranks.get(folder, rank), rank)
    folders = sorted(ranks.keys() - {""}, key=lambda folder: (*(-n for n in ranks[folder]), folder))
    called: dict[str, Json] = {k: v for k, v in results.items() if "/" not in k}
    labels = {name: label for label, name in name_results({"": results})[""].items()}
    main = ""
    for folder in folders:
        for name in (name for name in results if name.rpartition("/")[0] == folder):
            protocol, label = name.rpartition("/")[2], labels.get(name, name)
            is_main = folder == folders[0] and protocol not in called
            called[protocol if is_main else label] = results[name]
            main = main or label.partition(" on ")[2] * is_main
    return called, main
