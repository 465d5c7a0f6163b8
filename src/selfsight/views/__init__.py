"""Views of images: view_settings, sampling (random parameters), apply (operations on batches)."""

from selfsight.views.apply import apply_views, apply_views_reference
from selfsight.views.paper_augmentations import (
    PRESETS,
    barlow_twins,
    byol,
    moco_v1,
    moco_v2,
    moco_v3,
    msbreg,
    simclr,
    simo,
    small_crop,
    swav,
    without_blur,
)
from selfsight.views.view_settings import View, for_channels

__all__ = [
    "PRESETS",
    "View",
    "apply_views",
    "apply_views_reference",
    "barlow_twins",
    "byol",
    "for_channels",
    "moco_v1",
    "moco_v2",
    "moco_v3",
    "msbreg",
    "simclr",
    "simo",
    "small_crop",
    "swav",
    "without_blur",
]
