"""Views of images: settings as data, parameters from a counter, operations in batches."""

from selfsight.views.apply import center, make_views, views_of
from selfsight.views.presets import (
    PRESETS,
    barlow_twins,
    byol,
    moco_v1,
    moco_v2,
    moco_v3,
    msbreg,
    simclr,
    simo,
    swav,
    without_blur,
)
from selfsight.views.spec import Center, View, for_channels

__all__ = [
    "PRESETS",
    "Center",
    "View",
    "barlow_twins",
    "byol",
    "center",
    "for_channels",
    "make_views",
    "moco_v1",
    "moco_v2",
    "moco_v3",
    "msbreg",
    "simclr",
    "simo",
    "swav",
    "views_of",
    "without_blur",
]
