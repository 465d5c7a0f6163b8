"""A classifier for use: an encoder, a linear head, and the names of its classes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selfsight.data.eval_transform import EvalTransform, ImageLike, is_single
from selfsight.encoders.image_encoder import ImageEncoder
from selfsight.errors import UserError
from selfsight.evals.extract_features import BATCH_SIZE


class Prediction(NamedTuple):
    """The most likely class of an image, its confidence, and the ranking of further classes."""

    label: str
    confidence: float
    ranking: tuple[tuple[str, float], ...]


class ImageClassifier(nn.Module):
    """An encoder with a linear head: logits of transformed images, predictions of any images.

    The softmax of the logits is the confidence; a temperature is part of the head's weights.
    """

    def __init__(
        self,
        encoder: ImageEncoder,
        head: nn.Linear,
        class_names: Sequence[str],
        about: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.class_names, self.about = tuple(class_names), about

    @property
    def transform(self) -> EvalTransform:
        """The transform from an image to the encoder's input."""
        return self.encoder.transform

    def forward(self, x: Float[Tensor, "*n c h w"]) -> Float[Tensor, "*n k"]:
        """Map transformed images to logits: a batch, or one image."""
        return self.head(self.encoder(x))

    @torch.no_grad()
    def probabilities(
        self, images: ImageLike | Sequence[ImageLike], *, batch_size: int = BATCH_SIZE
    ) -> Float[Tensor, "*n k"]:
        """The confidence of each class, for files, images of Pillow or pixels."""
        return self.head(self.encoder.encode(images, batch_size=batch_size)).softmax(dim=-1)

    def classify(
        self, images: ImageLike | Sequence[ImageLike], *, top_k: int = 1
    ) -> Prediction | list[Prediction]:
        """The most likely classes of an image, or of each of several."""
        p = self.probabilities(images)
        found = rank_classes(p[None] if p.ndim == 1 else p, self.class_names, top_k)
        return found[0] if is_single(images) else found


def rank_classes(
    probabilities: Float[Tensor, "n k"], class_names: Sequence[str], top_k: int
) -> list[Prediction]:
    """The `top_k` most likely classes of each row; ties go to the first in the list of classes."""
    if not 1 <= top_k <= len(class_names):
        raise UserError(
            f"top_k is {top_k}, and there are {len(class_names)} classes. Give a number from 1 to "
            f"{len(class_names)}."
        )
    ordered = probabilities.sort(dim=1, descending=True, stable=True)
    rows = zip(ordered.values[:, :top_k].tolist(), ordered.indices[:, :top_k].tolist(), strict=True)
    predictions = []
    for values, numbers in rows:
        ranking = tuple((class_names[i], p) for p, i in zip(values, numbers, strict=True))
        predictions.append(Prediction(*ranking[0], ranking))
    return predictions
