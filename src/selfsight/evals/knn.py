"""Weighted nearest neighbors (Wu et al. 2018, arXiv:1805.01978, section 3.4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight.errors import UserError
from selfsight.evals.features import Features
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.spectrum import unit
from selfsight.progress import track

SIMILARITIES = 1 << 26  # held at a time: 256 MiB in float32


def neighbors(
    bank: Float[Tensor, "n d"],
    queries: Float[Tensor, "m d"],
    *,
    k: int,
    own: Int64[Tensor, " m"] | None = None,
) -> tuple[Float[Tensor, "m k"], Int64[Tensor, "m k"]]:
    """Similarity and row of the k nearest unit rows, nearest first and of equals the lowest row.

    `own` is the row of each query in the bank, which is left out.
    """
    similarity = queries @ bank.T  # [M, N]
    if own is not None:
        similarity.scatter_(1, own[:, None], float("-inf"))
    values, rows = similarity.topk(k)
    # topk takes any of the rows that are equal at its border, so those queries are sorted whole.
    last = values[:, -1:]
    torn = (similarity == last).sum(dim=1) > (values == last).sum(dim=1)
    if bool(torn.any()):
        ordered = similarity[torn].sort(dim=1, descending=True, stable=True)
        values[torn], rows[torn] = ordered.values[:, :k], ordered.indices[:, :k]
    rows, order = rows.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    return values, rows.gather(1, order)


def knn_votes(
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
    """For each k the class that the k nearest rows vote for, with exp(similarity / temperature).

    Of classes with equal votes the lowest wins. With `leave_one_out` the queries are the bank and
    no row votes for itself. `chunk` queries are compared at a time, once for all k.
    """
    voters = len(bank) - leave_one_out
    for k in ks:
        if not 1 <= k <= voters:
            raise UserError(
                f"k is {k}, but there are {voters} images that can vote. Choose k from 1 to "
                f"{voters}."
            )
    bank, queries = _finite_unit(bank), _finite_unit(queries)
    num_classes = num_classes or int(bank_y.max()) + 1
    row = torch.arange(len(queries), device=bank.device)
    guesses: dict[int, list[Tensor]] = {k: [] for k in ks}
    for part in track(row.split(chunk or max(1, SIMILARITIES // len(bank))), progress):
        own = part if leave_one_out else None
        values, rows = neighbors(bank, queries[part], k=max(ks), own=own)
        # Shares do not change when all votes are divided by the first, and none overflows.
        weights = ((values - values[:, :1]) / temperature).exp()
        votes = weights.new_zeros(len(part), num_classes)
        labels = bank_y[rows]
        # One column at a time: a single scatter on a GPU adds in any order, and ties would waver.
        for column in range(max(ks)):
            place = slice(column, column + 1)
            votes.scatter_add_(1, labels[:, place], weights[:, place])
            if column + 1 in guesses:
                guesses[column + 1].append(votes.argmax(dim=1))
    return {k: torch.cat(parts) for k, parts in guesses.items()}


def knn_predict(
    bank: Float[Tensor, "n d"],
    bank_y: Int64[Tensor, " n"],
    queries: Float[Tensor, "m d"],
    *,
    k: int = 20,
    **settings: Any,
) -> Int64[Tensor, " m"]:
    """`knn_votes` for a single k."""
    return knn_votes(bank, bank_y, queries, ks=(k,), **settings)[k]


def accuracy(guesses: Int64[Tensor, " m"], y: Int64[Tensor, " m"]) -> float:
    """Share of right guesses."""
    return (guesses == y).double().mean().item()


def _finite_unit(h: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    # A diverged network knows nothing: its rows become zero and score as such.
    return unit(h).nan_to_num(0.0, 0.0, 0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class KNN:
    """Share of images that their neighbors classify right.

    Without test images or a split, each training image is classified by all the others. The
    first k gives `accuracy`, and each its own number.
    """

    data: LabeledData
    ks: tuple[int, ...] = (20, 200)
    temperature: float = 0.07

    def __post_init__(self) -> None:
        if not self.ks or min(self.ks) < 1:
            raise UserError(f"k is {self.ks}. Give one or more numbers, each 1 or up.")
        if not self.temperature > 0:
            raise UserError(f"temperature is {self.temperature}. Give a number above 0.")

    def __call__(self, backbone: nn.Module) -> dict[str, float]:
        """The evaluator's numbers for a backbone."""
        return self.score(*self.data.features(backbone))

    def score(self, train: Features, test: Features | None) -> dict[str, float]:
        """Accuracy with each k of `settings`."""
        assert train.y is not None
        queries = train if test is None else test
        assert queries.y is not None
        guesses = knn_votes(
            train.h,
            train.y,
            queries.h,
            ks=self.effective_ks,
            temperature=self.temperature,
            num_classes=self.data.num_classes,
            leave_one_out=test is None,
            progress="neighbors" if self.data.progress else None,
        )
        right = {k: accuracy(guess, queries.y) for k, guess in guesses.items()}
        numbers = {f"accuracy_k{k}": right[k] for k in self.effective_ks}
        return {"accuracy": right[self.effective_ks[0]]} | numbers

    @property
    def voters(self) -> int:
        """How many images can vote on each."""
        return len(self.data.train_index) - (not self.data.has_test_images)

    @property
    def effective_ks(self) -> tuple[int, ...]:
        """Each k that has as many voters; where none has, all voters."""
        return tuple(k for k in self.ks if k <= self.voters) or (self.voters,)

    def settings(self) -> dict[str, Any]:
        """What decided the numbers, for the result file."""
        found: dict[str, Any] = {"k": list(self.effective_ks), "temperature": self.temperature}
        if lacking := [k for k in self.ks if k > self.voters]:
            which = " and ".join(map(str, lacking))
            found["note"] = f"k was to be {which}, but only {self.voters} images can vote."
        return found
