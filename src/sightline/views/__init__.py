"""Views of pictures: settings as data, parameters from a counter, operations in batches."""

from sightline.views.apply import centre, make_views, views_of
from sightline.views.presets import (
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
from sightline.views.spec import Centre, View, for_channels

__all__ = [
    "PRESETS",
    "Centre",
    "View",
    "barlow_twins",
    "byol",
    "centre",
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
