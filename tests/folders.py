"""Small folders of images, and runs on them that take a second or two."""

import contextlib
import resource

import numpy as np
from PIL import Image

QUICK = ("--device", "cpu", "--epochs", "2", "--batch-size", "8", "--log-every", "1")


def images(folder, count=24, size=(40, 32), classes=("cats", "dogs"), ending="jpg", seed=0):
    """Noise around a color for each class, a sub-folder each."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        name = classes[i % len(classes)]
        color = np.random.default_rng(i % len(classes) + 1).integers(0, 255, 3)
        pixels = np.clip(color + rng.normal(0, 40, (size[1], size[0], 3)), 0, 255)
        path = folder / name / f"image {i:03d}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder


@contextlib.contextmanager
def largest_file(size):
    """The kernel refuses to write files of more bytes, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
