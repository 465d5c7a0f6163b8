"""Scale the learning rate with the batch size: linear (lr x batch / 256), square root or none."""

import math
from typing import Literal

LRScaling = Literal["linear", "sqrt", "none"]


def scaled_lr(lr: float, scale: LRScaling, batch_size: int) -> float:
    """Return the peak learning rate for this global batch size."""
    return {"linear": lr * batch_size / 256, "sqrt": lr * math.sqrt(batch_size), "none": lr}[scale]
