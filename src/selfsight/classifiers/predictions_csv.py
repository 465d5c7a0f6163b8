"""Predict the images of a source and write them to a CSV file that a spreadsheet can open.

A spreadsheet treats a cell that begins with =, +, - or @ as a formula, and names of files and
classes are untrusted. So such a path gets ./ in front, which names the same file, and such a class
a single quote. Text is always in double quotes, so that no other separator splits it.
"""

import csv
import io
import math
import re
from pathlib import Path
from typing import Any

import torch

from selfsight.classifiers.image_classifier import ImageClassifier, rank_classes
from selfsight.data import Source
from selfsight.data.sources.source import clean
from selfsight.evals.extract_features import BATCH_SIZE
from selfsight.run_files.json_files import explain_write_errors, replace_file
from selfsight.terminal.progress import DelayedProgress
from selfsight.vectors.embed_images import encode_source

FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")  # noqa: RUF001 # the wide ones count too
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
DIGITS = 6  # of a confidence


def guard_path(path: str) -> str:
    """Write a path as a cell that is not a formula."""
    return f"./{path}" if FORMULA.match(path) else path


def guard_text(text: str) -> str:
    """Write text as a cell that is not a formula; numbers do not change."""
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else text


def write_predictions(
    classifier: ImageClassifier,
    source: Source,
    path: Path,
    device: torch.device,
    *,
    top_k: int = 1,
) -> dict[str, Any]:
    """Write a row for each image, in the order of the source; return a summary.

    An image that cannot be read has a row without a class, and the reason as `error`. The file
    gets its name when it is complete.
    """
    counts = dict.fromkeys(classifier.class_names, 0)
    total, unreadable = 0.0, []
    names = [clean(name) for name in classifier.class_names]
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            replace_file(path) as binary,
            DelayedProgress("predicting", len(source), unit="images") as bar,
        ):
            file = io.TextIOWrapper(binary, encoding="utf-8", newline="")
            # Python's newline is that of the standard, \r\n; tools of Unix expect \n.
            table = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
            table.writerow(_header(top_k))
            parts = torch.arange(len(source)).split(BATCH_SIZE)
            encoder = classifier.encoder
            for part in encode_source(encoder.backbone, encoder.transform, source, device, parts):
                p = classifier.head(part.h).softmax(dim=1)
                found = dict(zip(part.index.tolist(), rank_classes(p, names, top_k), strict=True))
                for i in part.asked.tolist():
                    image = guard_path(clean(source.names[i]))
                    if i in part.unreadable:
                        unreadable.append((clean(source.names[i]), part.unreadable[i]))
                        empty = [""] * (2 * top_k)
                        table.writerow([image, *empty, guard_text(part.unreadable[i])])
                        continue
                    cells = [c for pair in found[i].ranking for c in pair]
                    total += found[i].confidence
                    counts[classifier.class_names[names.index(found[i].label)]] += 1
                    table.writerow([image, *map(_cell, cells), ""])
                bar.advance(len(part.asked))
            file.detach()  # flushes, and leaves closing to `replace_file`
    predicted = len(source) - len(unreadable)
    return {
        "predictions": str(path),
        "images": len(source),
        "predicted": predicted,
        "unreadable": unreadable,
        "counts": counts,
        "mean_confidence": total / predicted if predicted else None,
    }


def _header(top_k: int) -> list[str]:
    ranks = ["", *(f"_{rank}" for rank in range(2, top_k + 1))]
    return ["path", *(f"{c}{rank}" for rank in ranks for c in ("label", "confidence")), "error"]


def _cell(value: str | float) -> str | float:
    if isinstance(value, str):
        return guard_text(value)
    return round(value, DIGITS) if math.isfinite(value) else ""
