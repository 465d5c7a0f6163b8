"""Calibrated confidences: temperature scaling of logits, and the expected calibration error.

Both follow Guo et al. 2017 (arXiv:1706.04599).
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

BINS = 15  # as in the paper
SHARPEST, FLATTEST = 1e-3, 1e3  # temperatures between which the best one is found
HALVINGS = 60  # of that interval, on a logarithmic scale: more than float64 can tell apart


def fit_temperature(logits: Float[Tensor, "n c"], y: Int64[Tensor, " n"]) -> float:
    """The temperature at which softmax(logits / temperature) has the lowest cross-entropy.

    If all images were predicted correctly, the best temperature would be 0, which means certainty.
    So the target of an image is (n + 1) / (n + 2) for its class, and the rest is divided among the
    other classes, as Platt 1999 does for a support vector machine.
    """
    logits = logits.double()
    n, c = logits.shape
    target = torch.full_like(logits, 1 / (n + 2) / max(1, c - 1))
    target[torch.arange(n, device=y.device), y] = (n + 1) / (n + 2)
    wanted = (target * logits).sum(dim=1).mean()
    # The cross-entropy is convex in 1 / temperature, and falls while this is positive.
    low, high = torch.tensor([SHARPEST, FLATTEST], dtype=torch.float64).log().tolist()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        p = (logits / torch.tensor(middle).exp()).softmax(dim=1)
        rises = (p * logits).sum(dim=1).mean() > wanted  # with 1 / temperature
        low, high = (middle, high) if bool(rises) else (low, middle)
    return float(torch.tensor((low + high) / 2, dtype=torch.float64).exp())


def calibration_error(logits: Float[Tensor, "n c"], y: Int64[Tensor, " n"]) -> float:
    """The expected calibration error of softmax(logits): in 15 bins of equal width.

    The mean over images of the difference, in each bin, of mean confidence and accuracy.
    """
    confidence, predicted = logits.double().softmax(dim=1).max(dim=1)
    excess = confidence - (predicted == y).double()
    bins = (confidence * BINS).ceil().long().clamp(1, BINS)  # (0, 1/15], (1/15, 2/15], ...
    total = torch.zeros(BINS + 1, dtype=torch.float64, device=logits.device)
    return float(total.index_add(0, bins, excess).abs().sum() / len(logits))
