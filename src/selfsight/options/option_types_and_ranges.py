"""Types of command options (NAME, INT, FOLDER, ...) and the range of each number."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from selfsight.check_settings import (
    BATCH_SIZE,
    COUNT,
    EPOCHS,
    PIXELS,
    POSITIVE,
    POSITIVE_SHARE,
    SEED,
    Range,
)
from selfsight.errors import UserError

INLINE = arg(name="")  # flags of an options class without a prefix
# The help of options without a default says what happens if they are not given.
Name = Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")]
Number = Annotated[int | None, arg(metavar="INT", help_behavior_hint="")]
Images = Annotated[str | Path | None, arg(metavar="DATA", help_behavior_hint="")]
Folder = Annotated[str | Path | None, arg(metavar="FOLDER", help_behavior_hint="")]
Scale = Literal["small", "cifar10", "imagenette", "stl10", "imagenet100", "imagenet"]
File = Annotated[str | Path | None, arg(metavar="FILE", help_behavior_hint="")]
ClassNames = Annotated[
    str | Path | tuple[str, ...], arg(metavar="NAME...|FILE", help_behavior_hint="")
]
Device = Annotated[str, arg(metavar="NAME")]
Domain = Annotated[
    Literal["auto", "photographs", "microscopy", "satellite", "documents"], arg(metavar="NAME")
]

RANGES: dict[str, Range] = {
    "epochs": EPOCHS,
    "batch_size": BATCH_SIZE,
    "seed": SEED,
    "seeds": SEED,
    "parallel": COUNT,
    "keep_epochs": EPOCHS,
    "k": COUNT,
    "temperature": POSITIVE,
    "last_blocks": COUNT,
    "image_size": PIXELS,
    "iterations": COUNT,
    "share": POSITIVE_SHARE,
    "sample": COUNT,
    "workers": COUNT,
    "epoch_images": COUNT,
    "cores": COUNT,
    "per_class": COUNT,
    "seconds": Range(0, 3600, low_allowed=False),
    "minutes": Range(0, 10**7),
    "steps": COUNT,
    "tolerance": Range(0),
    "shard_size": Range(1, 10**7),
    "count": COUNT,
    "top_k": COUNT,
    "similarity": Range(-1, 1),
    "clusters": Range(1, 1000),
    "port": Range(0, 65535),
    "max_mb": Range(1, 2000),
}


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise a UserError for equal seeds: they would train the same run twice."""
    seed, times = Counter(seeds).most_common(1)[0] if seeds else (0, 0)
    if times > 1:
        raise UserError(
            f"--seeds has {seed} more than once, which would train the same run twice. "
            "Name each seed once."
        )
