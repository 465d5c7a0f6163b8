"""Weighted nearest neighbors (Wu et al. 2018, arXiv:1805.01978, section 3.4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight.errors import UserError, check_number
from selfsight.evals.features import Features
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.per_image import Scores, score_predictions
from selfsight.evals.spectrum import unit
from selfsight.progress import track

MAX_SIMILARITIES = 1 << 26  # in memory at a time: 256 MiB in float32


def nearest_neighbors(
    bank: Float[Tensor, "n d"],
    queries: Float[Tensor, "m d"],
    *,
    k: int,
    exclude: Int64[Tensor, " m"] | None = None,
) -> tuple[Float[Tensor, "m k"], Int64[Tensor, "m k"]]:
    """Similarities and row numbers of the k nearest unit rows, sorted; ties go to the lower row.

    `exclude` is a row of the bank to ignore for each query, such as the query itself.
    """
    similarity = queries @ bank.T  # [M, N]
    if exclude is not None:
        similarity.scatter_(1, exclude[:, None], float("-inf"))
    values, rows = similarity.topk(k)
    # topk picks any of the rows that tie for the last place: such queries are fully sorted.
    last = values[:, -1:]
    tied = (similarity == last).sum(dim=1) > (values == last).sum(dim=1)
    if bool(tied.any()):
        ordered = similarity[tied].sort(dim=1, descending=True, stable=True)
        values[tied], rows[tied] = ordered.values[:, :k], ordered.indices[:, :k]
    rows, order = rows.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    return values, rows.gather(1, order)


def knn_predict(
    bank: Float[Tensor, "n d"],
    bank_y: Int64[Tensor, " n"],
    queries: Float[Tensor, "m d"],
    *,
    ks: Sequence[int],
    temperature: float = 0.07,
    num_classes: int | None = None,
    chunk: int | None = None,
    leave_one_out: bool = False,
    progress: str | None = None,
) -> dict[int, Int64[Tensor, " m"]]:
    """Predict the class of each query by the votes of its k nearest rows, for each k.

    A vote weighs exp(similarity / temperature); ties go to the lower class. With `leave_one_out`
    the queries are the bank and no row votes for itself. `chunk` queries are compared at a time.
    """
    voters = len(bank) - leave_one_out
    for k in ks:
        if not 1 <= k <= voters:
            raise UserError(
                f"k is {k}, but only {voters} images can vote. Give k from 1 to {voters}."
            )
    # Rows of a diverged network become zero, which scores like chance.
    bank, queries = (unit(h).nan_to_num(0.0, 0.0, 0.0) for h in (bank, queries))
    num_classes = num_classes or int(bank_y.max()) + 1
    row = torch.arange(len(queries), device=bank.device)
    predictions: dict[int, list[Tensor]] = {k: [] for k in ks}
    for part in track(row.split(chunk or max(1, MAX_SIMILARITIES // len(bank))), progress):
        exclude = part if leave_one_out else None
        values, rows = nearest_neighbors(bank, queries[part], k=max(ks), exclude=exclude)
        # Dividing all votes by the first changes no winner and avoids overflow.
        weights = ((values - values[:, :1]) / temperature).exp()
        votes = weights.new_zeros(len(part), num_classes)
        labels = bank_y[rows]
        # One column at a time: a single scatter on a GPU adds in any order, which would make ties
        # nondeterministic.
        for column in range(max(ks)):
            current = slice(column, column + 1)
            votes.scatter_add_(1, labels[:, current], weights[:, current])
            if column + 1 in predictions:
                predictions[column + 1].append(votes.argmax(dim=1))
    return {k: torch.cat(parts) for k, parts in predictions.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class KNN:
    """Accuracy of the weighted kNN classifier.

    Without test images or a split, each training image is classified by all the others. The
    first k gives `accuracy`; each k gives `accuracy_k<k>`.
    """

    data: LabeledData
    ks: tuple[int, ...] = (20, 200)
    temperature: float = 0.07

    def __post_init__(self) -> None:
        if not self.ks or min(self.ks) < 1:
            raise UserError(f"k is {self.ks}. Give one or more numbers of at least 1.")
        check_number("temperature", self.temperature, above=0)

    def __call__(self, backbone: nn.Module) -> Scores:
        """Return the numbers for a backbone."""
        return self.score(*self.data.features(backbone))

    def score(self, train: Features, test: Features | None) -> Scores:
        """Accuracy with each k of `effective_ks`, with intervals."""
        assert train.y is not None
        queries = train if test is None else test
        assert queries.y is not None
        predictions = knn_predict(
            train.h,
            train.y,
            queries.h,
            ks=self.effective_ks,
            temperature=self.temperature,
            num_classes=self.data.num_classes,
            leave_one_out=test is None,
            progress="neighbors" if self.data.progress else None,
        )
        guesses = {f"accuracy_k{k}": predictions[k] for k in self.effective_ks}
        first = predictions[self.effective_ks[0]]
        return score_predictions(queries.y, {"accuracy": first} | guesses)

    @property
    def num_voters(self) -> int:
        """How many images can vote on each query."""
        return len(self.data.train_index) - (not self.data.has_test_images)

    @property
    def effective_ks(self) -> tuple[int, ...]:
        """The ks that are at most the number of voters; if there is none, that number."""
        return tuple(k for k in self.ks if k <= self.num_voters) or (self.num_voters,)

    def settings(self) -> dict[str, Any]:
        """The settings that decided the numbers, for the result file."""
        settings: dict[str, Any] = {"k": list(self.effective_ks), "temperature": self.temperature}
        if too_large := [k for k in self.ks if k > self.num_voters]:
            ks = " and ".join(map(str, too_large))
            settings["note"] = f"k = {ks} is left out: only {self.num_voters} images can vote."
        return settings
