"""The numbers of the papers' code, and how a loss of another library is compared with them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

REFERENCE = Path(__file__).parents[2] / "tests/reference"


def published(name: str) -> dict[str, Tensor]:
    """Inputs, losses and gradients of one file, in float64."""
    return {k: torch.from_numpy(v).double() for k, v in np.load(REFERENCE / f"{name}.npz").items()}


def compare(
    title: str, loss: Callable[..., Tensor], inputs: list[Tensor], expected: Tensor, *grads: Tensor
) -> None:
    """Print loss and published loss, and the largest difference of a gradient."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    value = loss(*inputs).squeeze()
    value.backward()
    apart = max((x.grad - g).abs().max().item() for x, g in zip(inputs, grads, strict=False))
    scale = max(g.abs().max().item() for g in grads)
    agrees = abs(value - expected) < 2e-5 * abs(expected) and apart < 2e-5 * scale
    print(
        f"{title:44} {value.item():.6f}  published {expected.item():.6f}  "
        f"gradient apart {apart:.0e} of {scale:.0e}  {'agrees' if agrees else 'DIFFERS'}"
    )
