"""Every method at a size that a test can afford, and batches for it."""

from dataclasses import asdict

import torch

from selfsight.backbones import BackboneConfig
from selfsight.conformance import Subject
from selfsight.conformance.method_under_test import (
    DATA,
    SMALL_BACKBONE,
    TOTAL_STEPS,
    reduce_settings,
)
from selfsight.conformance.method_under_test import SmallBackbone as Tiny
from selfsight.methods import METHODS
from selfsight.recipe import ALL_METHODS, list_differences

__all__ = ["SMALL", "Tiny", "make", "moment", "small", "views"]

# Settings with which numbers were recorded, or that a test needs; the rest follow from the method.
CHOSEN: dict[str, dict] = {
    "barlow_twins": dict(dim=8, hidden_dim=16),
    "byol": dict(dim=8, hidden_dim=16),
    "fast_moco": dict(dim=8, predictor_dim=4),
    "instdisc": dict(dim=8, num_noise=16),
    "jcl": dict(dim=8, num_keys=3, queue_size=32, bn_group=4),
    "moco": dict(dim=8, queue_size=32, bn_group=4),
    "mocov3": dict(dim=8, hidden_dim=16),
    "msbreg": dict(num_views=3, dim=8, hidden_dim=16),
    "nnclr": dict(dim=8, hidden_dim=16, predictor_dim=12, queue_size=32, temperature=0.5),
    "simclr": dict(dim=8, hidden_dim=16),
    "simo": dict(dim=8, num_negatives=4),
    "simsiam": dict(dim=8, predictor_dim=4),
    "supervised": dict(),
    "swav": dict(dim=8, hidden_dim=16, num_prototypes=6, queue_size=16)
    | dict(queue_epoch=0, freeze_steps=0),
    "vicreg": dict(dim=8, hidden_dim=16),
}


def reduced(config):
    """The settings that `selfsight conformance` reduces, with the values that it gives them."""
    small = reduce_settings(config())
    changed = list_differences(asdict(config()), asdict(small))
    return {name: getattr(small, name) for name, *_ in changed}


SMALL = {name: CHOSEN.get(name, reduced(config)) for name, config in ALL_METHODS.items()}
TOTAL, GLOBAL_BATCH = TOTAL_STEPS, Subject.batch_size
NUM_IMAGES, NUM_CLASSES = DATA


def small(name, **settings):
    """The settings of the method called `name`, small, with batches for it."""
    return Subject(method=ALL_METHODS[name](**SMALL[name] | settings))


def make(name, **settings):
    """The method called `name`, small, with the weights of seed 0."""
    return small(name, **settings).build()


def views(method, step=0, size=16, dtype=torch.float32):
    """This process's share of a global batch of views: related, but not alike."""
    backbone = BackboneConfig(name=SMALL_BACKBONE, image_size=size)
    return Subject(method=method.config, backbone=backbone).views(step, dtype=dtype)


def moment(step=0, total=TOTAL):
    """Where training stands at this step."""
    return Subject(method=METHODS["moco"]()).moment(step, total_steps=total)
