import hashlib

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from selfsight.data import open_source
from selfsight.data.sources.shapes import CLASSES, COUNTS, shapes


@pytest.fixture(scope="module")
def drawn():
    return shapes("train", count=480), shapes("test", count=120)


def test_shapes_are_the_same_on_every_machine():
    images, _ = shapes("train", count=24)
    digest = hashlib.sha256(images.tobytes()).hexdigest()
    assert digest.startswith("8f00a009c18bdaca")


def test_shapes_do_not_depend_on_the_number_of_threads(monkeypatch):
    by_threads = []
    for cpus in (1, 5):
        monkeypatch.setattr("selfsight.data.sources.shapes.available_cpus", lambda n=cpus: n)
        by_threads.append(shapes("train", count=900)[0])  # two chunks of each class
    np.testing.assert_array_equal(*by_threads)


def test_an_image_depends_on_its_index_alone(drawn):
    (train, _), (test, _) = drawn
    np.testing.assert_array_equal(shapes("train", count=30)[0], train[:30])
    assert not (train[:30] == test[:30]).all(axis=(1, 2, 3)).any()
    assert not (train[:30] == shapes("train", seed=1, count=30)[0]).all(axis=(1, 2, 3)).any()


def test_classes_are_balanced(drawn):
    counts = np.bincount(drawn[0][1])
    assert len(counts) == len(CLASSES) >= 10 and counts.max() - counts.min() <= 1


def knn(features, train, test):
    model = KNeighborsClassifier(20, metric="cosine").fit(features(train[0]), train[1])
    return model.score(features(test[0]), test[1])


def test_raw_pixels_classify_poorly(drawn):
    assert knn(lambda x: x.reshape(len(x), -1) - 127.5, *drawn) < 0.3


def test_color_histograms_classify_hardly_above_chance(drawn):
    def histogram(x):
        code = (x.astype(int) // 64) @ (16, 4, 1)
        return np.stack([np.bincount(c.ravel(), minlength=64) ** 0.5 for c in code])

    assert knn(histogram, *drawn) < 2 / len(CLASSES)


def test_texture_classifies_better_than_pixels(drawn):
    """What filters see, pooled over place, separates the classes: there is something to learn."""

    def texture(x):
        gray = torch.from_numpy(x).float().mean(3)
        patches = torch.nn.functional.unfold(gray[:, None], 7, stride=3)  # [N, 49, L]
        patches = patches - patches.mean(1, keepdim=True)
        # Spectra of patches do not depend on where in the image a patch lies.
        spectra = torch.fft.fft2(patches.transpose(1, 2).unflatten(2, (7, 7))).abs()
        return spectra.flatten(2).mean(1).log1p().numpy()

    centered = texture(drawn[0][0]).mean(0)
    spread = knn(lambda x: texture(x) - centered, *drawn)
    assert spread > knn(lambda x: x.reshape(len(x), -1) - 127.5, *drawn) + 0.1


def test_shapes_are_a_source(drawn, monkeypatch):
    monkeypatch.setitem(COUNTS, "test", 36)
    source = open_source("shapes", split="test")
    assert len(source) == 36
    np.testing.assert_array_equal(source.read(5), drawn[1][0][5])
    assert source.class_names[source.labels[5]] == CLASSES[5]


def test_digits_are_split_without_overlap():
    parts = [open_source("digits", split=split) for split in ("train", "test")]
    assert sum(map(len, parts)) == len(load_digits().target)
    assert not set(parts[0].names) & set(parts[1].names)
    for part in parts:
        counts = np.bincount(part.labels)
        assert counts.min() > 0.9 * counts.max()
