"""What needs no training: neighbors by pixels, by color, by an untrained network, and chance."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selfsight.evals.features import module_device
from selfsight.evals.knn import KNN
from selfsight.views import EvalView

SIDE = 32  # pixels; enough to recognize most things, few enough to compare quickly
BINS = 4  # per color when red, green and blue are counted together
BINS_ALONE = 16  # per channel otherwise


class ColorHistogram(nn.Module):
    """Square roots of the shares of colors, so that a dot product is Bhattacharyya's overlap."""

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n b"]:
        """Images in [0, 1] to unit rows."""
        n, c = x.shape[:2]
        bins = BINS if c == 3 else BINS_ALONE
        level = (x * bins).long().clamp(0, bins - 1).flatten(2)  # [N, C, HW]
        if c == 3:
            code = (level[:, 0] * bins + level[:, 1]) * bins + level[:, 2]
        else:
            code = (level + bins * torch.arange(c, device=x.device)[:, None]).flatten(1)
        size = bins**3 if c == 3 else bins * c
        counts = x.new_zeros(n, size).scatter_add_(1, code, torch.ones_like(code, dtype=x.dtype))
        return (counts / code.shape[1]).sqrt()


def baselines(knn: KNN, untrained: nn.Module) -> dict[str, float]:
    """The given kNN's accuracy on pixels, colors and untrained features, and of a fixed guess."""
    data = knn.data
    side = min(SIDE, data.spec.size)
    whole = replace(data.spec, size=side, resize=side)
    device = data.device or module_device(untrained)

    def of(network: nn.Module, spec: EvalView) -> float:
        return replace(knn, data=replace(data, spec=spec, device=device))(network)["accuracy"]

    return {
        "pixels": of(nn.Flatten(), whole),
        "color_histogram": of(ColorHistogram(), replace(whole, mean=(0.0,), std=(1.0,))),
        "untrained": knn(untrained)["accuracy"],
        "chance": chance(knn),
    }


def chance(knn: KNN) -> float:
    """Accuracy of always guessing the training set's most common class."""
    train, test = knn.data.labels()
    return (test == train.bincount().argmax()).double().mean().item()
