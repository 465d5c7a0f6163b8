"""Baselines without training: kNN on pixels, colors and untrained features, and chance."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from selfsight.evals.extract_features import module_device
from selfsight.evals.knn import KNN
from selfsight.evals.prediction_scores import Scores, score_predictions

PIXELS = 32  # side of the images that are compared pixel by pixel
RGB_BINS = 4  # per color of the joint histogram of red, green and blue
CHANNEL_BINS = 16  # per channel of other images


class Pixels(nn.Module):
    """The encoder's input, reduced to a few pixels."""

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
        """Reduce each image to at most 32 x 32 pixels, one row per image."""
        return reduce(x).flatten(1)


class ColorHistogram(nn.Module):
    """Square roots of a color histogram, whose dot product is the Bhattacharyya coefficient."""

    def __init__(self, mean: tuple[float, ...] = (0.0,), std: tuple[float, ...] = (1.0,)) -> None:
        super().__init__()
        self.mean, self.std = mean, std

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n b"]:
        """Map images, normalized by mean and std, to rows of length one."""
        mean, std = (x.new_tensor(v)[:, None, None] for v in (self.mean, self.std))
        x = reduce(x) * std + mean
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


def reduce(x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c s s"]:
    """Reduce images to at most 32 x 32 pixels."""
    side = min(PIXELS, x.shape[-1])
    return F.interpolate(x, size=(side, side), mode="bilinear", antialias=True)


def baselines(
    knn: KNN, untrained: nn.Module, untrained_scores: Scores | None = None
) -> dict[str, float]:
    """kNN accuracy on pixels, colors and untrained features, and accuracy by chance.

    All see the crops that the encoder sees.
    """
    transform = knn.data.transform
    device = knn.data.device or module_device(untrained)
    on_device = replace(knn, data=replace(knn.data, device=device))
    scores = {
        "pixels": on_device(Pixels()),
        "color_histogram": on_device(ColorHistogram(transform.mean, transform.std)),
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
