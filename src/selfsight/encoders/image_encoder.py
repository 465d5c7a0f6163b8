"""A trained encoder for use elsewhere: its backbone and the transform of its images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from selfsight.data import Source
from selfsight.data.decoders.decode_image import Encoded
from selfsight.data.decoders.decode_workers import decode_images
from selfsight.data.eval_transform import EvalTransform, ImageLike, is_single, load_pixels
from selfsight.errors import UserError
from selfsight.evals.extract_features import BATCH_SIZE, encode, eval_mode, module_device
from selfsight.nn import Backbone


class ImageEncoder(Backbone):
    """A backbone with `transform`, from image to input, and `encode`, from image to feature.

    Both do exactly what `selfsight evaluate` does.
    """

    def __init__(self, backbone: Backbone, transform: EvalTransform) -> None:
        super().__init__()
        self.backbone, self.dim = backbone, backbone.dim
        self.transform = transform

    def forward(self, x: Float[Tensor, "*n c h w"]) -> Float[Tensor, "*n d"]:
        """Map transformed images to features: a batch, or one image."""
        return self.backbone(x[None])[0] if x.ndim == 3 else self.backbone(x)

    def encode(
        self, images: ImageLike | Sequence[ImageLike], *, batch_size: int = BATCH_SIZE
    ) -> Float[Tensor, "*n d"]:
        """Transform and encode files, images of Pillow or pixels, in evaluation mode.

        One image gives a vector, several give a row each, on the device of the weights.
        """
        single = is_single(images)
        several: list[Any] = [images] if single else list(images)  # type: ignore[arg-type]
        source = _as_source(several, self.transform)
        decoded = decode_images(
            source,
            range(len(source)),
            channels=self.transform.channels,
            dtype=self.transform.dtype,
            crop=self.transform.crop,
            progress=True,
        )
        device = module_device(self)
        crops: list[Tensor] = []
        rows: list[Tensor] = []
        with eval_mode(self):
            for name, pixels in zip(source.names, decoded, strict=True):
                if isinstance(pixels, str):
                    raise UserError(f"{name} cannot be read: {pixels}.")
                crops.append(torch.from_numpy(pixels))
                if len(crops) == batch_size or len(rows) * batch_size + len(crops) == len(source):
                    x = self.transform.normalize(torch.stack(crops).to(device))
                    rows.append(encode(self.backbone, x))
                    crops = []
        h = torch.cat(rows) if rows else torch.zeros(0, self.dim, device=device)
        return h[0] if single else h


def _as_source(images: Sequence[ImageLike], transform: EvalTransform) -> Source:
    """Wrap the images as a source; worker processes read files when they decode them."""
    files = [Path(i).expanduser() if isinstance(i, str | Path) else None for i in images]
    for file in files:
        if file is not None and file.is_dir():
            raise UserError(f"{file} is a folder; give its files, such as {file}/image.jpg.")

    def read(i: int) -> Encoded:
        file = files[i]
        if file is not None:
            return file.read_bytes()
        return load_pixels(images[i], transform.channels, transform.dtype)

    names = [f"image {i}" if file is None else str(file) for i, file in enumerate(files)]
    return Source("images", names, None, (), read)
