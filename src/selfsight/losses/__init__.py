"""Losses as pure functions of embeddings, correct for any number of processes."""

from selfsight.losses.contrastive import info_nce, jcl, nt_xent, queue_info_nce
from selfsight.losses.decorrelation import barlow_twins, lejepa, sigreg, vicreg
from selfsight.losses.predictive import negative_cosine, regression

__all__ = [
    "barlow_twins",
    "info_nce",
    "jcl",
    "lejepa",
    "negative_cosine",
    "nt_xent",
    "queue_info_nce",
    "regression",
    "sigreg",
    "vicreg",
]
