"""Retrieval by class: rank the training images by similarity; those of the same class are relevant.

Cosine similarity; average precision without interpolation, the mean over all test images (mAP), and
the precision among the first k. Nothing is trained or tuned, and unlike kNN the whole ranking
counts, not only the nearest images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn

from selfsight.check_settings import COUNT, check_setting
from selfsight.errors import UserError
from selfsight.evals.extract_features import Features
from selfsight.evals.feature_statistics import unit_or_zero
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.prediction_scores import PerImage, Scores, score_per_image
from selfsight.terminal.progress import track

MAX_RANKED = 1 << 22  # similarities ranked at a time: about 200 MiB with their ranks


def average_precision(
    similarity: Float[Tensor, "m n"], relevant: Bool[Tensor, "m n"], ks: Sequence[int] = ()
) -> tuple[Float64[Tensor, " m"], Float64[Tensor, "k m"]]:
    """Average precision of each row, and its precision among the first k.

    Images of equal similarity share the rank of the last of them, so that their order does not
    count (as in scikit-learn); the first k are taken from the lower columns. Without a relevant
    image the result is NaN.
    """
    values, order = similarity.sort(dim=1, descending=True, stable=True)
    hit = relevant.gather(1, order)
    hits = hit.cumsum(dim=1)  # [M, N]
    rank = torch.arange(similarity.shape[1], device=similarity.device)
    first_k = torch.stack([hits[:, k - 1] / k for k in ks]) if ks else hits.new_zeros(0, len(hits))
    is_last = values[:, 1:] != values[:, :-1]
    if bool(is_last.all()):
        precision = hits.double() / (rank + 1)
    else:
        is_last = torch.cat([is_last, is_last.new_ones(len(is_last), 1)], dim=1)
        last = torch.where(is_last, rank, len(rank)).flip(1).cummin(dim=1).values.flip(1)
        precision = hits.gather(1, last).double() / (last + 1)
    return (precision * hit).sum(dim=1) / hits[:, -1], first_k.double()


def rank_bank(
    bank: Float[Tensor, "n d"],
    bank_y: Int64[Tensor, " n"],
    queries: Float[Tensor, "m d"],
    y: Int64[Tensor, " m"],
    *,
    ks: Sequence[int] = (),
    leave_one_out: bool = False,
    chunk: int | None = None,
    progress: str | None = None,
) -> tuple[Float64[Tensor, " m"], Float64[Tensor, "k m"]]:
    """Average precision and precision at each k of every query, `chunk` queries at a time.

    With `leave_one_out` the queries are the bank, and no row retrieves itself.
    """
    # Rows of a diverged network become zero, which ranks all images equally.
    bank, queries = (unit_or_zero(h) for h in (bank, queries))
    parts = torch.arange(len(queries), device=bank.device)
    found = []
    for part in track(parts.split(chunk or max(1, MAX_RANKED // len(bank))), progress):
        similarity = queries[part] @ bank.T
        relevant = y[part][:, None] == bank_y
        if leave_one_out:  # last, and not relevant
            similarity.scatter_(1, part[:, None], -torch.inf)
            relevant.scatter_(1, part[:, None], False)
        found.append(average_precision(similarity, relevant, ks))
    precisions, first_k = zip(*found, strict=True)
    return torch.cat(precisions), torch.cat(first_k, dim=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Retrieval:
    """Mean average precision of ranking the training images for each test image.

    Without test images or a split, each training image ranks all the others.
    """

    data: LabeledData
    ks: tuple[int, ...] = (1, 20, 200)

    def __post_init__(self) -> None:
        check_setting("k", self.ks, tuple[int, ...], COUNT)
        if not bool(self._has_relevant().any()):
            raise UserError(
                "No test image has a training image of its class, so there is nothing to retrieve. "
                "Give two or more images of a class."
            )

    def __call__(self, backbone: nn.Module) -> Scores:
        """Return the numbers for a backbone."""
        return self.score(*self.data.features(backbone))

    def score(self, train: Features, test: Features | None) -> Scores:
        """mAP and precision at each k, with intervals."""
        queries = train if test is None else test
        assert train.y is not None and queries.y is not None
        precision, first_k = rank_bank(
            train.h,
            train.y,
            queries.h,
            queries.y,
            ks=self.effective_ks,
            leave_one_out=test is None,
            progress="ranking" if self.data.progress else None,
        )
        scored = self._has_relevant().numpy()
        values = {"map": precision} | {
            f"precision_at_{k}": row for k, row in zip(self.effective_ks, first_k, strict=True)
        }
        return score_per_image(
            PerImage(
                n=int(scored.sum()),
                values={name: value.cpu().numpy()[scored] for name, value in values.items()},
            )
        )

    @property
    def effective_ks(self) -> tuple[int, ...]:
        """The ks that are at most the number of images to rank."""
        return tuple(k for k in self.ks if k <= self.data.num_candidates)

    def settings(self) -> dict[str, Any]:
        """The settings that decided the numbers, for the result file."""
        notes = []
        if too_large := [str(k) for k in self.ks if k > self.data.num_candidates]:
            ks = " and ".join(too_large)
            most = self.data.num_candidates
            notes.append(f"Retrieval without k = {ks}: only {most} images are ranked.")
        if missing := int((~self._has_relevant()).sum()):
            notes.append(f"{missing} test images have no training image of their class: left out.")
        return {"similarity": "cosine", "k": list(self.effective_ks), "notes": notes}

    def _has_relevant(self) -> Bool[Tensor, " m"]:
        """Whether each test image has an image of its class to retrieve."""
        train, test = self.data.labels()
        counts = train.bincount(minlength=self.data.num_classes)[test]
        return counts > (not self.data.has_test_images)
