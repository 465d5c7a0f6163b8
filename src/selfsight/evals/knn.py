"""Weighted nearest neighbors (Wu et al. 2018, arXiv:1805.01978, section 3.4)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight.check_settings import COUNT, POSITIVE, check_setting
from selfsight.errors import UserError
from selfsight.evals.extract_features import Features
from selfsight.evals.feature_statistics import unit_or_zero
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.prediction_scores import Scores, score_predictions
from selfsight.terminal.progress import track

MAX_SIMILARITIES = 1 << 26  # in memory at a time: 256 MiB in float32
BLOCK = 1 << 17  # rows of the bank on the device at a time: 1 GiB of 2,048 numbers
VOTING_ROWS = 4096  # queries whose votes are counted at a time


def nearest_neighbors(
    bank: Float[Tensor, "n d"],
    queries: Float[Tensor, "m d"],
    *,
    k: int,
    exclude: Int64[Tensor, " m"] | None = None,
) -> tuple[Float[Tensor, "m k"], Int64[Tensor, "m k"]]:
    """Similarities and row numbers of the k nearest unit rows, sorted; ties go to the lower row.

    `exclude` is a row of the bank to ignore for each query, such as the query itself; -1 is none.
    """
    similarity = queries @ bank.T  # [M, N]
    if exclude is not None:
        which = (exclude >= 0).nonzero()[:, 0]
        similarity[which, exclude[which]] = float("-inf")
    values, rows = similarity.topk(min(k + 1, len(bank)))
    # topk picks any of the rows that tie for the last place: such queries are fully sorted.
    tied = (values[:, k - 1 : k] == values[:, k:]).any(dim=1)  # with the next after the last
    values, rows = values[:, :k], rows[:, :k]
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
    device: torch.device | None = None,
) -> dict[int, Int64[Tensor, " m"]]:
    """Predict the class of each query by the votes of its k nearest rows, for each k.

    A vote weighs exp(similarity / temperature); ties go to the lower class. With `leave_one_out`
    the queries are the bank and no row votes for itself. `chunk` queries are compared at a time, on
    `device` (of the queries, if not given): bank and queries may be in the memory of the host.
    """
    voters = len(bank) - leave_one_out
    for k in ks:
        if not 1 <= k <= voters:
            raise UserError(
                f"k is {k}, but only {voters} images can vote. Give k from 1 to {voters}."
            )
    device = device or queries.device
    num_classes = num_classes or int(bank_y.max()) + 1
    values, rows = neighbors_in_blocks(
        bank,
        queries,
        k=max(ks),
        chunk=chunk,
        leave_one_out=leave_one_out,
        progress=progress,
        device=device,
    )
    bank_y = bank_y.to(device)
    predictions: dict[int, list[Tensor]] = {k: [] for k in ks}
    for near, labels in zip(values.split(VOTING_ROWS), rows.split(VOTING_ROWS), strict=True):
        # Dividing all votes by the first changes no winner and avoids overflow.
        weights = ((near - near[:, :1]) / temperature).exp()
        votes = weights.new_zeros(len(near), num_classes)
        labels = bank_y[labels]
        # One column at a time: a single scatter on a GPU adds in any order, which would make ties
        # nondeterministic.
        for column in range(max(ks)):
            current = slice(column, column + 1)
            votes.scatter_add_(1, labels[:, current], weights[:, current])
            if column + 1 in predictions:
                predictions[column + 1].append(votes.argmax(dim=1))
    return {k: torch.cat(parts).to(queries.device) for k, parts in predictions.items()}


def neighbors_in_blocks(
    bank: Tensor,
    queries: Tensor,
    *,
    k: int,
    device: torch.device,
    chunk: int | None = None,
    leave_one_out: bool = False,
    progress: str | None = None,
) -> tuple[Float[Tensor, "m k"], Int64[Tensor, "m k"]]:
    """Similarities and rows of the k nearest, from a few thousand rows of the bank at a time.

    On the device are a block of the bank, some queries and their similarities.
    """
    size = chunk or max(1, MAX_SIMILARITIES // min(len(bank), BLOCK))
    parts = [(i, min(i + size, len(queries))) for i in range(0, len(queries), size)]
    nearest: list[tuple[Tensor, Tensor]] = []

    def blocks() -> Iterator[tuple[int, int, Tensor]]:
        for start in range(0, len(bank), BLOCK):
            block = unit_or_zero(bank[start : start + BLOCK].to(device))
            for i in range(len(parts)):
                yield start, i, block

    for start, i, block in track(blocks(), progress, -(-len(bank) // BLOCK) * len(parts)):
        first, last = parts[i]
        exclude = None
        if leave_one_out:
            own = torch.arange(first - start, last - start, device=device)
            exclude = torch.where(own < len(block), own, -1)
        q = unit_or_zero(queries[first:last].to(device))
        values, rows = nearest_neighbors(block, q, k=min(k, len(block)), exclude=exclude)
        rows += start
        if not start:
            nearest.append((values, rows))
            continue
        # Both lists are sorted and the earlier has the lower rows, so that ties stay in order.
        values, order = torch.cat([nearest[i][0], values], dim=1).sort(
            dim=1, descending=True, stable=True
        )
        rows = torch.cat([nearest[i][1], rows], dim=1).gather(1, order)
        nearest[i] = values[:, :k].clone(), rows[:, :k].clone()
    return torch.cat([v for v, _ in nearest]), torch.cat([r for _, r in nearest])


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
        if not self.ks:
            raise UserError("k is empty. Give one or more numbers, such as 20 and 200.")
        check_setting("k", self.ks, tuple[int, ...], COUNT)
        check_setting("temperature", self.temperature, float, POSITIVE)

    def __call__(self, backbone: nn.Module) -> Scores:
        """Return the numbers for a backbone."""
        return self.score(*self.data.features(backbone, on_host=self.data.is_large))

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
            device=train.y.device,
        )
        # Features of many images stay on the host, labels do not.
        found = {k: predictions[k].to(queries.y.device) for k in self.effective_ks}
        guesses = {f"accuracy_k{k}": guess for k, guess in found.items()}
        first = found[self.effective_ks[0]]
        return score_predictions(queries.y, {"accuracy": first} | guesses)

    @property
    def effective_ks(self) -> tuple[int, ...]:
        """The ks that are at most the number of voters; if there is none, that number."""
        most = self.data.num_candidates
        return tuple(k for k in self.ks if k <= most) or (most,)

    def settings(self) -> dict[str, Any]:
        """The settings that decided the numbers, for the result file."""
        settings: dict[str, Any] = {"k": list(self.effective_ks), "temperature": self.temperature}
        if too_large := [k for k in self.ks if k > self.data.num_candidates]:
            ks = " and ".join(map(str, too_large))
            settings["note"] = f"without k = {ks}: only {self.data.num_candidates} images can vote."
        return settings
