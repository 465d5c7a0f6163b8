"""Find the images of a run that are most similar to an image that it has never seen."""

import base64
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

from selfsight.data.decoders.decode_image import decode
from selfsight.data.image_limits import UnreadableError
from selfsight.encoders.image_encoder import ImageEncoder
from selfsight.encoders.load_run_networks import RunCheckpoint, load_method
from selfsight.evals.extract_features import features, module_device
from selfsight.evals.feature_statistics import unit_or_zero
from selfsight.evals.knn import nearest_neighbors
from selfsight.recipe import Recipe, eval_transform
from selfsight.run_files.run_folder import Run
from selfsight.runs.image_sheets import (
    NEIGHBOR_IMAGES,
    load_uncropped,
    names_and_labels,
    pad_to_square,
    to_bytes,
    to_image,
)
from selfsight.runs.open_run_images import open_run_images
from selfsight.train.online_eval import sample_images

SHOWN = 12  # most similar images of an answer
TILE = 112  # side of an image of an answer in pixels
Find = Callable[[bytes], dict[str, Any]]


def build_finder(run: Run, recipe: Recipe, device: torch.device, *, trust: bool) -> Find:
    """Encode up to 5,000 images of a run; return a function that finds those similar to an image.

    The function takes the bytes of an image, and raises an UnreadableError if it cannot decode it.
    """
    transform = eval_transform(recipe)
    backbone = load_method(RunCheckpoint(run), recipe, device).student.backbone
    encoder = ImageEncoder(backbone, transform).eval()
    images = open_run_images(run, recipe, device, trust=trust)
    subset = sample_images(images, NEIGHBOR_IMAGES, recipe.seed)
    stored = features(backbone, images, transform, index=subset, progress="images")
    bank = unit_or_zero(stored.h)

    def find(data: bytes) -> dict[str, Any]:
        # At the stored size, as the images it is compared with.
        pixels = _decode(data, recipe)
        h = unit_or_zero(encoder.encode(pixels)[None].float())
        k = min(SHOWN, len(bank))
        similarity, rows = nearest_neighbors(bank, h.to(module_device(backbone)), k=k)
        index = stored.index[rows[0]].cpu()
        about = zip(
            names_and_labels(images, index),
            similarity[0].tolist(),
            load_uncropped(images, index, transform),
            strict=True,
        )
        query = to_image(to_bytes(torch.from_numpy(pixels).permute(2, 0, 1), transform))
        return {
            "images": len(bank),
            "query": _as_url(query),
            "neighbors": [
                {"name": n, "label": la, "similarity": round(value, 4), "image": _as_url(image)}
                for (n, la), value, image in about
            ],
        }

    return find


def _decode(data: bytes, recipe: Recipe) -> np.ndarray:
    """Decode an image like those of the run; raise an UnreadableError if that fails."""
    try:
        return decode(
            data,
            store_size=recipe.data.store_size,
            channels=recipe.data.channels,
            dtype=recipe.data.dtype,
        )
    except OSError as error:
        raise UnreadableError(str(error)) from error


def _as_url(image: Image.Image) -> str:
    file = io.BytesIO()
    pad_to_square(image, TILE).save(file, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
