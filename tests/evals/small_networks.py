"""Small labeled images whose classes differ by brightness, and a network that sees it."""

import torch
from torch import nn

from selfsight.data import CachedImages
from selfsight.data.eval_transform import EvalTransform
from selfsight.evals.labeled_data import LabeledData
from selfsight.views import View

TRANSFORM = EvalTransform(size=8, resize=8, mean=(0.5,), std=(0.25,))
VIEWS = (
    View(size=8, mean=(0.5,), std=(0.25,), blur=0.0, gray=0.0, jitter=(0.1, 0.1, 0.0, 0.0)),
) * 2


def from_pixels(pixels, labels=None, class_names=(), names=None) -> CachedImages:
    """Images [c, h, w], each of its own size."""
    return CachedImages(
        torch.cat([x.flatten() for x in pixels]),
        torch.tensor([x.shape[1] for x in pixels]),
        torch.tensor([x.shape[2] for x in pixels]),
        channels=pixels[0].shape[0],
        names=names or [f"p{i}.png" for i in range(len(pixels))],
        labels=labels,
        class_names=class_names,
    )


def bright(
    n=60, *, classes=3, channels=3, side=8, seed=0, labeled=True, names=None
) -> CachedImages:
    """Classes in turn, each with its own channel or level of brightness, and noise."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    x = torch.randint(0, 80, (n, channels, side, side), generator=g)
    for i in range(n):
        x[i, y[i] % channels] += 60 + 90 * (int(y[i]) // channels)
    return from_pixels(
        x.to(torch.uint8),
        y if labeled else None,
        tuple(f"class {c}" for c in range(classes)) if labeled else (),
        names,
    )


def labeled(train, **settings) -> LabeledData:
    """Labeled images with the small transform."""
    return LabeledData(train=train, **{"transform": TRANSFORM, **settings})


class Means(nn.Module):
    """A backbone whose features are the channels' means, scaled and shifted."""

    def __init__(self, channels=3):
        super().__init__()
        self.dim = channels
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return self.norm(x).mean(dim=(2, 3))


class Small(nn.Module):
    """A backbone that can be trained: a convolution, a norm, a mean over places."""

    def __init__(self):
        super().__init__()
        self.dim = 6
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        with torch.no_grad():
            g = torch.Generator().manual_seed(0)
            self.conv.weight.copy_(torch.randn(self.conv.weight.shape, generator=g) / 5)
            self.conv.bias.zero_()

    def forward(self, x):
        return self.norm(self.conv(x)).relu().mean(dim=(2, 3))
