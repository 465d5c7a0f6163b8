"""Learning from few labels: which images, and the published settings.

"1 %" is 1 % of all training images, the same number of each class. A user who has SimCLR's lists
of ImageNet files gives them as a file of names.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from selfsight import rng
from selfsight.data import ImageStore
from selfsight.errors import UserError, suggest
from selfsight.evals.classifier_settings import COSINE, ClassifierSettings, falling, sgd
from selfsight.optim import Optim, Schedule
from selfsight.run_folder import read_json, write_json

SWEPT = (0.05, 0.5, 5.0, 50.0, 500.0)


@dataclass(frozen=True, kw_only=True)
class LabelAmount:
    """How many labels: a share of all images, a number of each class, or a file of names."""

    share: float | None = None
    per_class: int | None = None
    file: Path | None = None

    def __post_init__(self) -> None:
        given = [v for v in (self.share, self.per_class, self.file) if v is not None]
        if len(given) != 1:
            raise UserError("Say how many labels once: a share, a number per class, or a file.")
        if self.share is not None and not 0 < self.share <= 1:
            raise UserError(f"The share of labels is {self.share}. Give above 0 and up to 1.")
        if self.per_class is not None and self.per_class < 1:
            raise UserError(f"There are {self.per_class} labels per class. Give 1 or more.")

    @property
    def words(self) -> str:
        """ "1 %", "5 per class" or the file's name."""
        if self.file is not None:
            return self.file.name
        return f"{self.share:.4g}" if self.share is not None else f"{self.per_class} per class"


def balanced(
    labels: Int64[Tensor, " n"], amount: LabelAmount, *, seed: int = 0
) -> Int64[Tensor, " m"]:
    """As many images of every class, drawn from the seed, in rising order.

    A class that has fewer gives all it has.
    """
    classes = labels.unique().tolist()
    count = amount.per_class or round((amount.share or 0.0) * len(labels) / len(classes))
    if count < 1:
        raise UserError(
            f"{amount.share:.2%} of {len(labels)} images is less than one for each of "
            f"{len(classes)} classes. Give a larger share, or a number per class."
        )
    draw = rng.uniform(rng.key(seed, "few"), torch.arange(len(labels)), 1)[:, 0]
    chosen = []
    for label in classes:
        members = (labels == label).nonzero()[:, 0]
        chosen.append(members[draw[members].argsort(stable=True)[:count]])
    return torch.cat(chosen).sort().values


def by_name(names: list[str], file: Path) -> Int64[Tensor, " m"]:
    """The images that a text file names, a line each, by path or by file name alone."""
    try:
        wanted = [w for line in file.read_text().splitlines() if (w := line.strip())]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(
            f"The list of images {file} cannot be read: {reason}. Give a text file with a path "
            "or file name on each line."
        ) from error
    place = {Path(name).name: i for i, name in enumerate(names)}
    place |= {name: i for i, name in enumerate(names)}
    found = {w: place.get(w, place.get(Path(w).name)) for w in wanted}
    lacking = [w for w, i in found.items() if i is None]
    if lacking or not wanted:
        what = f'"{lacking[0]}" and {len(lacking) - 1} more' if lacking else "nothing"
        raise UserError(
            f"{file} names {len(wanted)} images, of which the training images lack {what}."
            f"{suggest(lacking[0], place) if lacking else ''} Names are paths or file names, such "
            f'as "{names[0]}".'
        )
    return torch.tensor(sorted({i for i in found.values() if i is not None}))


def load_or_sample_few(
    folder: Path,
    images: ImageStore,
    amount: LabelAmount,
    *,
    among: Int64[Tensor, " n"] | None = None,
    seed: int = 0,
) -> Int64[Tensor, " m"]:
    """The few images that the folder keeps for this amount, drawn and written on first use.

    `among` are those that may be learned from. The file holds numbers and names.
    """
    assert images.labels is not None
    among = torch.arange(len(images)) if among is None else among
    if amount.file is not None:
        named = by_name(list(images.names), amount.file)
        kept = named[torch.isin(named, among)]
        if not len(kept):
            raise UserError(f"{amount.file} names only images that are kept to be scored on.")
        return kept
    labels = images.labels.cpu()[among]
    content = repr((list(images.names), labels.tolist(), among.tolist(), amount.words, seed))
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    path = folder / f"few-{amount.words.replace(' ', '-')}-{digest}.json"
    saved = read_json(path)
    if saved is None:
        few = among[balanced(labels, amount, seed=seed)]
        names = [images.names[i] for i in few.tolist()]
        saved = {"labels": amount.words, "seed": seed, "images": few.tolist(), "names": names}
        write_json(path, saved)
    return torch.tensor(saved["images"])


def tuned(
    source: str, head: float, backbone: float | None, schedule: Schedule, **settings: Any
) -> ClassifierSettings:
    """SGD for head and backbone, each at its own rate; without one the backbone is frozen."""
    names = ("nesterov", "weight_decay")
    own = {name: settings.pop(name) for name in names if name in settings}
    return ClassifierSettings(
        source=source,
        head=sgd(head, schedule, **own),
        backbone=None if backbone is None else sgd(backbone, schedule, **own),
        **({"batch_size": 256} | settings),
    )


def fifths(epochs: int) -> Schedule:
    """Times 0.2 at 60 % and at 80 % of the epochs."""
    return falling(0.6 * epochs, 0.8 * epochs, gamma=0.2)


FAST_MOCO = (
    "Fast-MoCo (arXiv:2207.08220), supplement; the head's rate is printed as 5e2 and cannot be "
    "told from 5e-2, so it is swept"
)
MSBREG = (
    "MSBReg (arXiv:2207.03552), supplement 2.2; it follows BYOL and states neither epochs nor "
    "schedule: 50 epochs, and x0.2 at 60 % and 80 %, are ours"
)
SWAV = "SwAV (arXiv:2006.09882): facebookresearch/swav, eval_semisup.py"
BARLOW = "Barlow Twins (arXiv:2103.03230): facebookresearch/barlowtwins, README"
VICREG = "VICReg (arXiv:2105.04906): facebookresearch/vicreg, README"
SIMCLR = "SimCLR (arXiv:2002.05709): google-research/simclr, README; the head without adaptation"


def simclr(epochs: int) -> ClassifierSettings:
    """LARS for the backbone at 0.005 x sqrt(batch), plain momentum for the head at the same."""
    rate: dict[str, Any] = {"lr": 0.005, "scale": "sqrt", "weight_decay": 0.0}
    return ClassifierSettings(
        source=SIMCLR,
        epochs=epochs,
        batch_size=1024,
        head=Optim(name="sgd", schedule=Schedule(), **rate),
        backbone=Optim(name="lars", variant="simclr", exclude_1d=True, schedule=Schedule(), **rate),
    )


ONE, TEN = LabelAmount(share=0.01), LabelAmount(share=0.1)
PUBLISHED: dict[str, tuple[LabelAmount, ClassifierSettings]] = {
    "fast_moco_1": (
        ONE,
        tuned(FAST_MOCO, 0.05, None, fifths(60), epochs=60, nesterov=True, rates=SWEPT),
    ),
    "fast_moco_10": (
        TEN,
        tuned(FAST_MOCO, 0.05, 1e-6, fifths(20), epochs=20, nesterov=True, rates=SWEPT),
    ),
    "msbreg_1": (
        ONE,
        tuned(MSBREG, 2.0, None, fifths(50), epochs=50, nesterov=True, batch_size=1024),
    ),
    "msbreg_10": (
        TEN,
        tuned(MSBREG, 0.25, 2.5e-4, fifths(50), epochs=50, nesterov=True, batch_size=1024),
    ),
    "swav_1": (ONE, tuned(SWAV, 5.0, 0.02, fifths(20), epochs=20)),
    "swav_10": (TEN, tuned(SWAV, 0.2, 0.01, fifths(20), epochs=20)),
    "barlow_twins_1": (ONE, tuned(BARLOW, 0.5, 0.005, COSINE, epochs=20)),
    "barlow_twins_10": (
        TEN,
        tuned(f"{BARLOW}, which gives 1 % alone: the same", 0.5, 0.005, COSINE, epochs=20),
    ),
    "vicreg_1": (ONE, tuned(VICREG, 0.08, 0.03, COSINE, epochs=20)),
    "vicreg_10": (TEN, tuned(VICREG, 0.1, 0.01, COSINE, epochs=20)),
    "simclr_1": (ONE, simclr(60)),
    "simclr_10": (TEN, simclr(30)),
}


# The fast variants: logistic regression on features, as in linear.py.
SOLVED: dict[str, LabelAmount] = {"linear_1": ONE, "linear_10": TEN}
