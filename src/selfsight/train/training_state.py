"""The training state that a checkpoint holds."""

from dataclasses import dataclass, field
from typing import Any

import torch

from selfsight.methods import Method
from selfsight.optim import load_optimizer_state
from selfsight.recipe import list_differences
from selfsight.train.grad_scaler import GradScaler
from selfsight.train.online_eval import OnlineProbe


@dataclass
class State:
    """Everything that a checkpoint holds; `step` is also the position in the data."""

    method: Method
    optimizer: torch.optim.Optimizer
    scaler: GradScaler
    probe: OnlineProbe | None = None
    step: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the recipe, those that another run's would differ in."""

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values only, so that loading runs no code."""
        return {
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "probe": self.probe.state_dict() if self.probe else None,
            "step": self.step,
            "settings": self.settings,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; raise a ValueError if it is another run's.

        A setting that one of the two lacks is of another version.
        """
        differences = list_differences(saved.get("settings") or {}, self.settings)
        if any(was is not None and now is not None for _, was, now in differences):
            raise ValueError("it was saved with other settings")
        self.method.load_state_dict(saved["method"])
        load_optimizer_state(self.optimizer, saved["optimizer"])
        self.scaler.load_state_dict(saved["scaler"])
        if self.probe and saved["probe"]:
            self.probe.load_state_dict(saved["probe"])
        self.step = saved["step"]
