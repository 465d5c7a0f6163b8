"""Reading images: sources, decoding, cache or stream, order, loader."""

from selfsight.data.image_store import CachedImages, ImageStore
from selfsight.data.loader import Loader, RawBatch, read_batches
from selfsight.data.pixel_cache import load_images
from selfsight.data.sources.open_source import BUILT_IN, find_url, list_splits, open_source
from selfsight.data.sources.source import Source
from selfsight.data.storage_plan import open_images, plan_storage
from selfsight.data.stream import StreamedImages

__all__ = [
    "BUILT_IN",
    "CachedImages",
    "ImageStore",
    "Loader",
    "RawBatch",
    "Source",
    "StreamedImages",
    "find_url",
    "list_splits",
    "load_images",
    "open_images",
    "open_source",
    "plan_storage",
    "read_batches",
]
