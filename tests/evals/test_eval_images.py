"""Crops for evaluation: decoded once per transform, and no more images than needed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from selfsight.data import Source, open_source
from selfsight.data.eval_transform import EvalTransform, standard_transform
from selfsight.data.pixel_cache import cache_key
from selfsight.evals.eval_images import EvalImages, augmentation_size
from selfsight.evals.extract_features import features
from tests.data.image_files import pixels, read_padded, write
from tests.evals.small_networks import Means

SHAPES = [(40, 60), (33, 20), (90, 30), (24, 24), (50, 51), (12, 70)]
TRANSFORM = standard_transform(20)


class Counted:
    """A source of arrays that counts how often each image is read."""

    def __init__(self):
        self.arrays = [pixels(*shape, seed=i) for i, shape in enumerate(SHAPES)]
        self.reads = [0] * len(SHAPES)
        names = [f"{i}.png" for i in range(len(SHAPES))]
        labels = np.arange(len(SHAPES)) % 2
        self.source = Source("counted", names, labels, ("a", "b"), self.read)

    def read(self, i):
        self.reads[i] += 1
        return self.arrays[i]


def test_crops_are_those_of_the_transform_and_decoded_once():
    counted = Counted()
    images = EvalImages(counted.source, TRANSFORM)
    reads = list(counted.reads)
    for transform in (TRANSFORM, replace(TRANSFORM, mean=(0.5,), std=(0.1,))):  # the same pixels
        crops, rows = images.crops(transform)
        found, _ = read_padded(crops, rows)
        assert torch.equal(transform.normalize(found), transform(counted.arrays))
    assert counted.reads == reads
    assert crops.num_bytes == len(SHAPES) * 3 * 20 * 20  # not those of the full images


@pytest.mark.parametrize("changes", [{"resize": 24}, {"interpolation": "bicubic"}, {"size": 16}])
def test_another_transform_has_its_own_crops(changes):
    counted, other = Counted(), replace(TRANSFORM, **changes)
    images = EvalImages(counted.source, TRANSFORM)
    found, _ = read_padded(*images.crops(other))
    assert torch.equal(other.normalize(found), other(counted.arrays))


def test_only_the_images_that_are_needed_are_decoded():
    counted = Counted()
    images, other = EvalImages(counted.source, TRANSFORM), EvalTransform(size=16, resize=16)
    reads = list(counted.reads)
    crops, rows = images.crops(other, torch.tensor([4, 1]))
    found, _ = read_padded(crops, rows)
    assert torch.equal(other.normalize(found), other([counted.arrays[4], counted.arrays[1]]))
    assert [now - before for now, before in zip(counted.reads, reads, strict=True)] == [
        *(0, 1, 0, 0, 1, 0)
    ]


def test_unreadable_images_are_left_out_of_every_transform(tmp_path):
    arrays = {name: pixels(30, 40, seed=i) for i, name in enumerate("abde")}
    for name, array in arrays.items():
        write(tmp_path / "x" / f"{name}.png", array)
    (tmp_path / "x" / "c.png").write_bytes(b"nothing")
    images = EvalImages(open_source(str(tmp_path)), TRANSFORM)
    assert len(images) == 4 and [name for name, _ in images.skipped] == ["x/c.png"]
    assert images.notes[0].startswith("1 of 5 images cannot be read and are left out: x/c.png (")
    other, network = EvalTransform(size=16, resize=16), Means()
    index = torch.tensor([3])
    found = features(network, images, other, index=index)
    torch.testing.assert_close(found.h[0], network.eval()(other([arrays["e"]]))[0].detach())
    assert len(images.pixels(256, 3)) == 4


def test_cached_files_are_named_by_images_and_transform_alone(tmp_path):
    write(tmp_path / "x" / "a.png", pixels())
    source = open_source(str(tmp_path))

    def key(transform):
        return cache_key(source, transform=transform, channels=3, decoder="cpu")

    assert key(TRANSFORM) == key(replace(TRANSFORM, mean=(0.5,), std=(0.1,)))
    others = [replace(TRANSFORM, resize=24), replace(TRANSFORM, interpolation="bicubic")]
    stored = cache_key(source, store_size=20, channels=3, decoder="cpu")
    assert len({key(TRANSFORM), stored, *map(key, others)}) == 4


def test_the_stored_size_depends_on_the_encoder_alone():
    assert augmentation_size(standard_transform(32)) == 256
    assert augmentation_size(standard_transform(384)) == 438
