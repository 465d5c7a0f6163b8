"""What a log record holds, and when the loss is no longer a number."""

import math
import time
from typing import Any

import torch
from torch import Tensor

from selfsight import dist
from selfsight.errors import DivergedError
from selfsight.evals.features import eval_mode
from selfsight.evals.spectrum import effective_rank, feature_std
from selfsight.methods import Method, MethodConfig, Step
from selfsight.recipe import Recipe
from selfsight.train.loop import Batch, State

PATIENCE = 10  # steps without a finite gradient, one after the other, before the run is given up
SEARCHING = 3  # times as many in fp16, which loses a step whenever it tries too large a scale


@torch.no_grad()
def embedding(method: Method, h: Tensor) -> Tensor:
    """What the projector makes of features: it can collapse while the features do not."""
    projector = method.student.projector
    with eval_mode(projector):
        return projector(h.to(next(projector.parameters()).dtype))


def information_bound(config: MethodConfig, *, chance: float | None, loss: float) -> float | None:
    """EqCo's lower bound on mutual information, in nats; None if the loss is not InfoNCE.

    `chance` is the loss of guessing, log(1 + alpha) or log(1 + K) times the loss's scale.
    """
    if chance is None or not config.info_nce:
        return None
    return (chance - loss) / config.info_nce_scale


class Watch:
    """What happened since the last record: images, seconds, waiting."""

    def __init__(self, recipe: Recipe, steps_per_epoch: int) -> None:
        self.recipe, self.steps_per_epoch = recipe, steps_per_epoch
        self.begun = time.perf_counter()
        self.first_step: float | None = None  # seconds until it was done
        self.restart()

    def restart(self) -> None:
        """Count anew, so that measuring and saving are not taken for training."""
        self.since, self.waited, self.images = time.perf_counter(), 0.0, 0

    def first(self, step: Step) -> float:
        """Seconds until the first step was done, compiling included; the host waits for it."""
        float(step.loss)
        self.first_step = round(time.perf_counter() - self.begun, 2)
        return self.first_step

    def see(self, batch: Batch) -> None:
        """One step was done."""
        self.waited += batch.waited
        self.images += len(batch.index) * dist.world_size()

    def record(self, state: State, step: Step) -> dict[str, Any] | None:
        """One line of the log, none after a lost step: here alone the host waits for the device."""
        loss = float(dist.mean(step.loss))  # a GPU is some steps behind: only now are they done
        seconds = time.perf_counter() - self.since
        h, z = dist.gather(step.features), dist.gather(embedding(state.method, step.features))
        momentum = getattr(getattr(state.method, "teacher", None), "momentum", None)
        record: dict[str, Any] = {
            "step": state.step,
            "epoch": round(state.step / self.steps_per_epoch, 4),
            "loss": loss,
            "lr": float(state.optimizer.param_groups[0]["lr"]),
            "momentum": None if momentum is None else float(momentum),
            "images_per_second": round(self.images / seconds, 1),
            "data_wait": round(min(1.0, self.waited / seconds), 4),
            "feature_std": float(feature_std(h)),
            "effective_rank": float(effective_rank(h)),
            "embedding_std": float(feature_std(z)),
            "embedding_rank": float(effective_rank(z)),
            "chance_loss": self.recipe.method.chance_loss(self.recipe.batch_size),
            "lost_steps": int(state.guard.total),
            "first_step": self.first_step,
            "time": round(time.perf_counter() - self.begun, 2),
        }
        record["information_bound"] = information_bound(
            self.recipe.method, chance=record["chance_loss"], loss=record["loss"]
        )
        record |= {name: float(dist.mean(value)) for name, value in step.logs.items()}
        wrong = [k for k, v in record.items() if isinstance(v, float) and not math.isfinite(v)]
        longest, ended = state.guard.take_longest(), record["epoch"] == self.recipe.epochs
        patience = PATIENCE * (SEARCHING if state.guard.scaled else 1)
        if longest < patience and not wrong:
            return record
        if int(state.guard.streak) > 0 and longest < patience and not ended:
            return None
        what = [f"these are no longer numbers: {', '.join(wrong)}"] if wrong else []
        if longest:
            what.append(f"{longest} steps in a row had no finite gradient and were not taken")
        raise DivergedError(
            f"By step {state.step} {'; '.join(what)}. Lower --optim.lr, or lengthen "
            "--optim.schedule.warmup-epochs; the last checkpoint is kept."
        )
