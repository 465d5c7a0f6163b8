"""Images: where they come from, how they are decoded and kept, in which order they are given."""

from selfsight.data.decode_all import load
from selfsight.data.image_store import Images
from selfsight.data.loader import Loader, Raw, read_batches
from selfsight.data.source import Source
from selfsight.data.sources.open import BUILT_IN, open_source, splits_of
from selfsight.data.storage_plan import open_images, planned

__all__ = [
    "BUILT_IN",
    "Images",
    "Loader",
    "Raw",
    "Source",
    "load",
    "open_images",
    "open_source",
    "planned",
    "read_batches",
    "splits_of",
]
