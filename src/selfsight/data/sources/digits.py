"""`digits`: 1,797 scans of handwritten digits that come with scikit-learn (UCI, 1998)."""

from collections.abc import Callable

import numpy as np
from PIL import Image

SIDE = 16  # the scans have 8 pixels: too few for a network that halves its maps three times


def load_digits_split(
    split: str,
) -> tuple[list[str], np.ndarray, tuple[str, ...], Callable[[int], np.ndarray]]:
    """Names, labels, class names and a reader; every fifth image of a class is a test image."""
    from sklearn.datasets import load_digits

    data = load_digits()
    rank = np.zeros(len(data.target), dtype=int)  # position of an image within its class
    for digit in range(10):
        of_class = data.target == digit
        rank[of_class] = np.arange(of_class.sum())
    selected = np.flatnonzero((rank % 5 == 4) == (split == "test"))

    def read(i: int) -> np.ndarray:
        scan = np.round(data.images[selected[i]] * (255 / 16)).astype(np.uint8)
        large = Image.fromarray(scan).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        return np.asarray(large)[:, :, None]

    names = [f"digits/{split}/{i}" for i in selected]
    return names, data.target[selected].astype(np.int64), tuple("0123456789"), read
