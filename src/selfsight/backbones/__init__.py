"""Backbones: networks that map each image to one feature vector."""

from selfsight.backbones.backbone_config import (
    BACKBONES,
    VITS,
    BackboneConfig,
    build_external,
    stem_for,
)
from selfsight.nn import Backbone

__all__ = ["BACKBONES", "VITS", "Backbone", "BackboneConfig", "build_external", "stem_for"]
