"""Tiles of large images, against slices of the arrays."""

import numpy as np
import pytest
import torch

from selfsight.data import StreamedImages, load_images, open_source
from selfsight.data.decoders import decode_image as decoding
from selfsight.data.sources import tiles
from selfsight.data.sources.tiles import cut_tiles, list_boxes


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(0)
    for name, shape in (("a", (50, 70, 2)), ("b", (20, 8, 2)), ("c", (33, 32, 2))):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", generator.integers(0, 60000, shape).astype(np.uint16))
    return tmp_path


def cut(folder, tile=16):
    return cut_tiles(open_source(folder, labels=True), tile, channels=2, dtype="uint16")


def test_a_tile_is_the_slice_that_its_name_says(folder):
    source = cut(folder)
    assert len(source) == 3 * 4 + 1 * 1 + 2 * 2
    for i, name in enumerate(source.names):
        path, _, rows = name.rstrip("]").partition("[")
        (top, bottom), (left, right) = (map(int, part.split(":")) for part in rows.split(","))
        expected = np.load(folder / path)[top:bottom, left:right]
        np.testing.assert_array_equal(source.read(i), expected)
        assert source.class_names[source.labels[i]] == path[0]


@pytest.mark.parametrize("side", [1, 15, 16, 23, 24, 40, 41, 1000])
def test_tiles_reach_both_ends_and_neither_overlap_nor_gap_exceeds_half_a_tile(side):
    boxes = list_boxes(side, 16, 16)
    tops = [box.top for box in boxes]
    steps = np.diff(tops)
    assert min(tops) >= 0
    assert tops[-1] + boxes[-1].height <= side
    if len(boxes) > 1:
        assert (tops[0], tops[-1] + 16) == (0, side)
        assert steps.min() >= 8
        assert steps.max() <= 24
    else:
        assert side < 24


@pytest.mark.parametrize("storage", ["cache", "stream"])
def test_each_image_is_decoded_once_an_epoch(folder, storage, monkeypatch):
    counts: dict[bytes, int] = {}

    def count(data, **settings):
        counts[data] = counts.get(data, 0) + isinstance(data, bytes)
        return decoding.decode(data, **settings)

    monkeypatch.setattr(tiles, "decode", count)
    source, settings = cut(folder), {"store_size": 16, "channels": 2, "dtype": "uint16"}
    if storage == "cache":
        stored = load_images(source, **settings, workers=2, progress=False)
    else:
        stored = StreamedImages(source, **settings, workers=2)
        stored.prefetch(torch.arange(17))
    x, _ = stored.pack(torch.arange(17), lambda n: torch.empty(n, dtype=torch.uint8))
    assert x.flat.dtype == torch.uint16
    assert len(counts) == 3
    assert max(counts.values()) == 1


def test_an_unreadable_image_is_one_tile_with_its_reason(folder):
    (folder / "b" / "x.npy").write_bytes(b"\x93NUMPY broken")
    stored = load_images(cut(folder), store_size=16, channels=2, dtype="uint16", progress=False)
    assert len(stored) == 16
    assert [name for name, _ in stored.skipped] == ["b/x.npy[0:1,0:1]"]


def test_tiles_of_an_image_that_can_be_read_again_are_other_tiles(folder, monkeypatch):
    before = cut(folder).fingerprint()
    monkeypatch.setattr(tiles, "_read_sizes", lambda source: [(1, 1)] * len(source))
    assert cut(folder).fingerprint() != before
