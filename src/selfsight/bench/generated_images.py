"""Images to measure with where none are given: what matters is their number, size and format."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 500, 375  # the usual size of ImageNet's files
COARSE = 24  # pixels of the coarse pattern across
GRAIN = 14.0  # of the noise on top; files come out at about 50 kB, like photographs


def photographs(folder: Path, count: int) -> Path:
    """A folder of JPEG files that are as long and as hard to decode as photographs."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda i: _write(folder / f"{i:06}.jpg", i), range(count)))
    return folder


def _write(path: Path, number: int) -> None:
    if path.exists():
        return
    made = np.random.default_rng(number)
    coarse = made.integers(0, 256, (COARSE * HEIGHT // WIDTH, COARSE, 3), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    noise = made.normal(0.0, GRAIN, (HEIGHT, WIDTH, 3))
    pixels = (np.asarray(smooth, dtype=np.float32) + noise).clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path, quality=85)
