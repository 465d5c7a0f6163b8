"""Baselines without training: kNN on pixels, colors and untrained features, and chance."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selfsight.evals.features import module_device
from selfsight.evals.knn import KNN
from selfsight.evals.per_image import Scores, score_predictions
from selfsight.views import EvalView

PIXELS = 32  # side of the images that are compared pixel by pixel
RGB_BINS = 4  # per color of the joint histogram of red, green and blue
CHANNEL_BINS = 16  # per channel of other images


class ColorHistogram(nn.Module):
    """Square roots of a color histogram, whose dot product is the Bhattacharyya coefficient."""

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n b"]:
        """Map images in [0, 1] to rows of length one."""
        n, c = x.shape[:2]
        bins = RGB_BINS if c == 3 else CHANNEL_BINS
        level = (x * bins).long().clamp(0, bins - 1).flatten(2)  # [N, C, HW]
        if c == 3:
            code = (level[:, 0] * bins + level[:, 1]) * bins + level[:, 2]
        else:
            code = (level + bins * torch.arange(c, device=x.device)[:, None]).flatten(1)
        size = bins**3 if c == 3 else bins * c
        counts = x.new_zeros(n, size).scatter_add_(1, code, torch.ones_like(code, dtype=x.dtype))
        return (counts / code.shape[1]).sqrt()


def baselines(
    knn: KNN, untrained: nn.Module, untrained_scores: Scores | None = None
) -> dict[str, float]:
    """kNN accuracy on pixels, colors and untrained features, and accuracy by chance."""
    data = knn.data
    side = min(PIXELS, data.spec.size)
    small = replace(data.spec, size=side, resize=side)
    device = data.device or module_device(untrained)

    def score(network: nn.Module, spec: EvalView) -> Scores:
        return replace(knn, data=replace(data, spec=spec, device=device))(network)

    scores = {
        "pixels": score(nn.Flatten(), small),
        "color_histogram": score(ColorHistogram(), replace(small, mean=(0.0,), std=(1.0,))),
        "untrained": untrained_scores or knn(untrained),
        "chance": score_chance(knn),
    }
    return {
        f"{name}{end}": found[f"accuracy{end}"]
        for name, found in scores.items()
        for end in ("", "_low", "_high")
    }


def score_chance(knn: KNN) -> Scores:
    """Accuracy of always predicting the most frequent class of the training set."""
    train, test = knn.data.labels()
    return score_predictions(test, {"accuracy": train.bincount().argmax().expand_as(test)})
