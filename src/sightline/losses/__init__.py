"""Losses as pure functions of embeddings, right at any number of processes."""

from sightline.losses.contrastive import info_nce, jcl, nt_xent, queue_info_nce
from sightline.losses.decorrelation import barlow_twins, vicreg
from sightline.losses.precision import compiled_losses
from sightline.losses.predictive import negative_cosine, regression

__all__ = [
    "barlow_twins",
    "compiled_losses",
    "info_nce",
    "jcl",
    "negative_cosine",
    "nt_xent",
    "queue_info_nce",
    "regression",
    "vicreg",
]
