"""Pictures: where they come from, how they are decoded and kept, in which order they are given."""

from sightline.data.fill import load
from sightline.data.loader import Loader, Raw
from sightline.data.pictures import Pictures
from sightline.data.plan import open_pictures, planned
from sightline.data.source import Source
from sightline.data.sources import BUILT_IN, open_source, splits_of

__all__ = [
    "BUILT_IN",
    "Loader",
    "Pictures",
    "Raw",
    "Source",
    "load",
    "open_pictures",
    "open_source",
    "planned",
    "splits_of",
]
