"""Few labels: sample 1 % or 10 % of them, or some per class, the same number of each class.

"1 %" is 1 % of all training images, the same number of each class. SimCLR's lists of ImageNet
files can be given as a file of names.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from selfsight import rng
from selfsight.check_settings import COUNT, POSITIVE_SHARE, RESTORE, check_fields, check_settings
from selfsight.errors import UserError, list_first, suggest
from selfsight.evals.eval_images import Images
from selfsight.run_files.json_files import read_object, write_json


@dataclass(frozen=True, kw_only=True)
class LabelAmount:
    """The labels to train with: a share of all, a number per class, or a file of image names."""

    share: float | None = None
    per_class: int | None = None
    file: Path | None = None

    def __post_init__(self) -> None:
        given = [v for v in (self.share, self.per_class, self.file) if v is not None]
        if len(given) != 1:
            raise UserError(
                "Give exactly one of a share of the labels (--share), a number per class "
                "(--per-class) and a file of names (--split-file)."
            )
        check_settings(self, "", {"share": POSITIVE_SHARE, "per_class": COUNT})

    @property
    def description(self) -> str:
        """The share, "5 per class" or the file's name."""
        if self.file is not None:
            return self.file.name
        return f"{self.share:.4g}" if self.share is not None else f"{self.per_class} per class"


def sample_balanced(
    labels: Int64[Tensor, " n"], amount: LabelAmount, *, seed: int = 0
) -> Int64[Tensor, " m"]:
    """Sample the same number of images from every class; indices are sorted.

    A class with fewer images contributes all of them.
    """
    classes = labels.unique().tolist()
    count = amount.per_class or round((amount.share or 0.0) * len(labels) / len(classes))
    if count < 1:
        raise UserError(
            f"{amount.share:.2%} of {len(labels)} images is less than one for each of "
            f"{len(classes)} classes. Give a larger --share, or --per-class N."
        )
    u = rng.uniform(rng.key(seed, "few"), torch.arange(len(labels)), 1)[:, 0]
    sampled = []
    for label in classes:
        members = (labels == label).nonzero()[:, 0]
        sampled.append(members[u[members].argsort(stable=True)[:count]])
    return torch.cat(sampled).sort().values


def describe_small_classes(
    labels: Int64[Tensor, " n"], amount: LabelAmount, class_names: Sequence[str]
) -> tuple[str, ...]:
    """A sentence if sampled classes have fewer labels than were asked for."""
    count = amount.per_class or 0
    sizes = labels.bincount(minlength=len(class_names)).tolist()
    small = {c: n for c, n in zip(class_names, sizes, strict=True) if 0 < n < count}
    if not small:
        return ()
    first = list_first([f'"{name}" {size}' for name, size in small.items()])
    classes, have = ("class", "has") if len(small) == 1 else ("classes", "have")
    return (f"{len(small)} {classes} {have} fewer than {count} labels: {first}.",)


def find_by_name(names: list[str], file: Path) -> Int64[Tensor, " m"]:
    """Indices of the images listed in a text file, one path or file name per line."""
    try:
        wanted = [w for line in file.read_text().splitlines() if (w := line.strip())]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(
            f"The list of images {file} cannot be read: {reason}. Give a text file with a path "
            "or file name on each line."
        ) from error
    index = {name: i for i, name in enumerate(names)}
    same_name: dict[str, list[str]] = {}
    for name in names:
        same_name.setdefault(Path(name).name, []).append(name)
    indices: dict[str, int | None] = {}
    for word in wanted:
        found = [word] if word in index else same_name.get(Path(word).name, [])
        if len(found) > 1:  # files of several folders have this name
            found = [name for name in found if _ends_alike(name, word)]
        indices[word] = index[found[0]] if len(found) == 1 else None
    missing = [w for w, i in indices.items() if i is None]
    if not wanted:
        raise UserError(f"{file} is empty. Give a text file with a file name on each line.")
    if missing:
        raise UserError(
            f'{file} lists {len(wanted)} images, but {len(missing)}, such as "{missing[0]}", '
            f"are not training images, or several have that name.{suggest(missing[0], index)} Give "
            f'paths or file names, such as "{names[0]}".'
        )
    return torch.tensor(sorted({i for i in indices.values() if i is not None}))


def _ends_alike(name: str, word: str) -> bool:
    """Whether one of two paths is the end of the other."""
    one, other = Path(name).parts, Path(word).parts
    shorter = min(len(one), len(other))
    return one[-shorter:] == other[-shorter:]


def load_or_sample_few(
    folder: Path,
    images: Images,
    amount: LabelAmount,
    *,
    candidates: Int64[Tensor, " n"] | None = None,
    seed: int = 0,
) -> Int64[Tensor, " m"]:
    """Load the sample saved in the folder for these images and this amount, or sample and save it.

    Only `candidates` are sampled; None: all images. The file has indices and names.
    """
    assert images.labels is not None
    candidates = torch.arange(len(images)) if candidates is None else candidates
    if amount.file is not None:
        listed = find_by_name(list(images.names), amount.file)
        sample = listed[torch.isin(listed, candidates)]
        if not len(sample):
            raise UserError(
                f"{amount.file} lists only test images. List images of the training split."
            )
        return sample
    labels = images.labels.cpu()[candidates]
    content = repr(
        (list(images.names), labels.tolist(), candidates.tolist(), amount.description, seed)
    )
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    path = folder / f"few-{amount.description.replace(' ', '-')}-{digest}.json"
    saved = read_object(path)
    if saved is None:
        sample = candidates[sample_balanced(labels, amount, seed=seed)]
        names = [images.names[i] for i in sample.tolist()]
        saved = {
            "labels": amount.description,
            "seed": seed,
            "images": sample.tolist(),
            "names": names,
        }
        write_json(path, saved)
    check_fields(saved, {"images": list[int]}, path, required=("images",))
    if not set(saved["images"]) <= set(candidates.tolist()) or not saved["images"]:
        raise UserError(f"{path} is damaged: it has images that cannot be sampled. {RESTORE}")
    return torch.tensor(saved["images"])
