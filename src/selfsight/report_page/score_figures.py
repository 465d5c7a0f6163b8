"""The figures of scores: bars with intervals, differences, classes and confusion matrices."""

from collections.abc import Mapping

from selfsight.report_page.json_values import (
    TEXTS,
    Json,
    Number,
    Records,
    finite,
    finite_items,
    latest,
    number,
    section,
)
from selfsight.run_files.run_results import find_headline

HEADLINE_NAMES = {
    "accuracy": "share of test images with the right label",
    "map": "mean average precision",
    "box_AP": "average precision of boxes",
}
UNTRAINED = "untrained network"  # in the texts, where training may have started from an encoder
DIFFERENCE_KEYS = ("difference", "low", "high", "n")


def accuracies(results: Mapping[str, Json], records: Records) -> dict[str, Number]:
    """Collect the finite accuracies by name, from the results or else from the log."""
    scores: dict[str, Json] = {"online_knn_accuracy": latest(records, "online_knn")}
    for bar in _bar_texts(results):
        for file in (bar.get("fallback"), bar["file"]):
            if file and (value := number(section(results, file).get(bar["field"]))) is not None:
                scores[bar["key"]] = value
    return finite_items(scores)


def bars(
    scores: Mapping[str, Number],
    results: Mapping[str, Json],
    data: str = "",
    *,
    before: str = UNTRAINED,
) -> list[Json]:
    """Prepare a bar for each accuracy with its interval, in reading order.

    `data` is the data set of results that do not name theirs, if there are several, and `before`
    names what training started from.
    """
    prepared = []
    for bar in (bar for bar in _bar_texts(results) if bar["key"] in scores):
        found: dict[str, Json] = {}
        for file in (bar.get("fallback"), bar["file"]):
            found |= section(results, file) if file else {}
        prepared.append(bar | {**read_interval(found, bar["field"]), "value": scores[bar["key"]]})
        file = str(bar["file"] if bar["file"] in results else bar.get("fallback", bar["file"]))
        prepared[-1]["name"] = bar["name"].replace(UNTRAINED, before)
        if data and " on " not in file and not file.startswith("online_"):
            prepared[-1]["name"] += f" on {data}"
    return prepared


def _bar_texts(results: Mapping[str, Json]) -> list[dict[str, Json]]:
    """Texts of the bars of texts.toml, then of the main number of every other protocol."""
    texts = list(TEXTS["bars"])
    named = {bar["file"] for bar in texts}
    for file in (file for file in results if file not in named):
        if (headline := find_headline(section(results, file))) is None:
            continue
        name = HEADLINE_NAMES[headline[0]]
        trained = {"name": f"{file}, after training", "meaning": name, "ours": True}
        untrained = {"name": f"{file}, {UNTRAINED}", "meaning": name}
        for prefix, text in (("", trained), ("untrained_", untrained)):
            field = f"{prefix}{headline[0]}"
            texts.append({"key": f"{file}_{field}", "file": file, "field": field, **text})
    return texts


def differences(results: Mapping[str, Json], *, before: str) -> list[Json]:
    """Differences between the encoder and each other one, in the main number of every protocol.

    `before` names what training started from.
    """
    prepared = []
    for file in results:
        measure, _ = find_headline(section(results, file)) or ("", None)
        for other in section(results, file, "differences"):
            row = section(results, file, "differences", other, measure)
            known = finite_items({key: row.get(key) for key in DIFFERENCE_KEYS})
            if len(known) == len(DIFFERENCE_KEYS):
                name = f"the {before}" if other == "untrained" else other
                prepared.append({"file": file, "other": name, **known})
    return prepared


def classes(results: Mapping[str, Json]) -> list[Json]:
    """Prepare the accuracy of each class and the confusion matrix of every result with classes."""
    prepared = []
    for name in results:
        result = section(results, name)
        rows = [
            read_interval(section(row), "accuracy") | {"name": label, "n": number(row.get("n"))}
            for label, row in section(result, "per_class").items()
            if isinstance(row, Mapping) and number(row.get("accuracy")) is not None
        ]
        if len(rows) > 1:
            balanced = read_interval(result, "balanced_accuracy")
            labels, confusion = result.get("class_names") or [], result.get("confusion")
            is_square = isinstance(labels, list) and _has_shape(confusion, len(labels))
            prepared.append(
                {
                    "name": name,
                    "rows": sorted(rows, key=lambda row: row["value"]),
                    "balanced": balanced if balanced["value"] is not None else None,
                    "labels": list(map(str, labels)) if is_square else None,
                    "confusion": confusion if is_square else None,
                }
            )
    return prepared


def plain_results(results: Mapping[str, Json]) -> dict[str, Json]:
    """Select the numbers for the table of all results: those without a figure."""
    figures = ("per_class", "class_names", "confusion")
    return {
        name: {key: value for key, value in section(result).items() if key not in figures}
        for name, result in results.items()
        if name != "verdict"
    }


def read_interval(numbers: Mapping[str, Json], name: str) -> dict[str, Json]:
    """Read a number and the ends of its interval."""
    ends = {"value": name, "low": f"{name}_low", "high": f"{name}_high"}
    return {end: number(numbers.get(key)) for end, key in ends.items()}


def _has_shape(matrix: Json, size: int) -> bool:
    """Whether this is a square of finite numbers of this size."""
    rows = matrix if isinstance(matrix, list) and len(matrix) == size else [None]
    return all(isinstance(r, list) and len(r) == size and None not in finite(r) for r in rows)


def label_free(results: Mapping[str, Json]) -> list[Json]:
    """Prepare the measures that need no labels, trained and untrained, with their intervals."""
    rows = []
    for measure in TEXTS["label_free"]:
        pair = section(results, "label_free", measure["key"])
        after, before = (read_interval(pair, name) for name in ("trained", "untrained"))
        gain = finite_items({key: section(pair, "difference").get(key) for key in DIFFERENCE_KEYS})
        if after["value"] is not None:
            difference = gain if len(gain) == len(DIFFERENCE_KEYS) else None
            rows.append(measure | {"trained": after, "untrained": before, "gain": difference})
    return rows
