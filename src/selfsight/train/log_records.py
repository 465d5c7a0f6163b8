"""The records of the log: loss, learning rate, images per second, feature rank, ..."""

import time
from typing import Any

import torch
from torch import Tensor

from selfsight import dist
from selfsight.evals.extract_features import eval_mode
from selfsight.evals.feature_statistics import effective_rank, feature_std
from selfsight.methods import Method, MethodConfig, Step
from selfsight.recipe import Recipe
from selfsight.train.skipped_steps import check_divergence
from selfsight.train.step import Batch
from selfsight.train.training_state import State

MAX_RECORDS = 20_000  # of a log: some 10 MB


@torch.no_grad()
def embed(method: Method, h: Tensor) -> Tensor:
    """Project features to embeddings, which can collapse while the features do not."""
    projector = method.student.projector
    with eval_mode(projector):
        return projector(h.to(next(projector.parameters()).dtype))


def information_bound(config: MethodConfig, *, chance: float | None, loss: float) -> float | None:
    """Return EqCo's lower bound on mutual information, in nats; None if the loss is not InfoNCE.

    `chance` is the loss of guessing, log(1 + alpha) or log(1 + K) times the loss's scale.
    """
    if chance is None or not config.info_nce:
        return None
    return (chance - loss) / config.info_nce_scale


def log_spacing(recipe: Recipe, total_steps: int) -> int:
    """Steps between log records: `log_every`, or more if there would be too many records."""
    return max(recipe.log_every, -(-total_steps // MAX_RECORDS))


class Metrics:
    """Counts images, seconds and waiting time, and builds log records from them."""

    def __init__(self, recipe: Recipe, steps_per_epoch: int) -> None:
        self.recipe, self.steps_per_epoch = recipe, steps_per_epoch
        self.started, self.seconds_before = time.perf_counter(), 0.0
        self.first_step_seconds: float | None = None
        self.restart()

    def restart(self) -> None:
        """Reset the counters, so that evaluating and saving do not count as training."""
        self.since, self.data_wait, self.images = time.perf_counter(), 0.0, 0

    def resume_time(self, seconds: float) -> None:
        """Count the time of a resumed run from what its log says."""
        self.seconds_before = seconds

    def first_step(self, step: Step) -> float:
        """Return the seconds until the end of the first step, including compilation."""
        float(step.loss)  # waits for the device
        self.first_step_seconds = round(time.perf_counter() - self.started, 2)
        return self.first_step_seconds

    def count(self, batch: Batch) -> None:
        """Count one step."""
        self.data_wait += batch.data_wait
        self.images += len(batch.index) * dist.world_size()

    def record(self, state: State, step: Step) -> dict[str, Any] | None:
        """Build a log record, or None after a skipped step; the host waits for the device."""
        loss = float(dist.mean(step.loss))  # waits for the device, which runs some steps behind
        seconds = time.perf_counter() - self.since
        h, z = dist.gather(step.features), dist.gather(embed(state.method, step.features))
        momentum = getattr(getattr(state.method, "teacher", None), "momentum", None)
        record: dict[str, Any] = {
            "step": state.step,
            "epoch": round(state.step / self.steps_per_epoch, 4),
            "loss": loss,
            "lr": float(state.optimizer.param_groups[0]["lr"]),
            "momentum": None if momentum is None else float(momentum),
            "images_per_second": round(self.images / seconds, 1),
            "data_wait": round(min(1.0, self.data_wait / seconds), 4),
            "feature_std": float(feature_std(h)),
            "effective_rank": float(effective_rank(h)),
            "embedding_std": float(feature_std(z)),
            "embedding_rank": float(effective_rank(z)),
            "chance_loss": self.recipe.method.chance_loss(self.recipe.batch_size),
            "skipped_steps": int(state.scaler.skipped_steps),
            "first_step": self.first_step_seconds,
            "time": round(self.seconds_before + time.perf_counter() - self.started, 2),
        }
        record["information_bound"] = information_bound(
            self.recipe.method, chance=record["chance_loss"], loss=record["loss"]
        )
        record |= {name: float(dist.mean(value.detach())) for name, value in step.logs.items()}
        finished = record["epoch"] == self.recipe.epochs
        return record if check_divergence(record, state.scaler, finished=finished) else None
