"""Generate JPEG files for the bench when no data are given; only number and size matter."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 500, 375  # the usual size of ImageNet's files
CLASSES = 10
COARSE = 24  # pixels of the coarse pattern across
NOISE_SIGMA = 14.0  # gives files of about 50 kB, like photographs


def write_photo_like_images(folder: Path, count: int) -> Path:
    """Write JPEG files with the size and decoding cost of photographs; return the folder.

    They are in ten sub-folders, for methods that need labels.
    """
    for number in range(min(CLASSES, count)):
        (folder / str(number)).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda i: _write(folder / str(i % CLASSES) / f"{i:06}.jpg", i), range(count)))
    return folder


def _write(path: Path, number: int) -> None:
    if path.exists():
        return
    generator = np.random.default_rng(number)
    coarse = generator.integers(0, 256, (COARSE * HEIGHT // WIDTH, COARSE, 3), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    noise = generator.normal(0.0, NOISE_SIGMA, (HEIGHT, WIDTH, 3))
    pixels = (np.asarray(smooth, dtype=np.float32) + noise).clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path, quality=85)
