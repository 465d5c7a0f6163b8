import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from selfsight.evals.baselines import ColorHistogram, Pixels, baselines
from selfsight.evals.knn import KNN
from selfsight.evals.stratified_splits import Split
from tests.evals.small_networks import TRANSFORM, Means, bright, from_pixels, labeled


def test_histogram_counts_each_color_once():
    x = torch.zeros(1, 3, 2, 2)
    x[0, :, 0, 0] = 1.0  # one white pixel, three black
    h = ColorHistogram()(x)
    assert h.shape == (1, 64)
    assert h[0, 0].item() == pytest.approx(math.sqrt(3 / 4))
    assert h[0, 63].item() == pytest.approx(math.sqrt(1 / 4))
    assert h.norm().item() == pytest.approx(1)


def test_histogram_tells_red_from_blue():
    red, blue = torch.zeros(2, 1, 3, 2, 2).unbind()
    red[:, 0], blue[:, 2] = 1.0, 1.0
    assert (ColorHistogram()(red) * ColorHistogram()(blue)).sum() == 0


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_histogram_of_any_number_of_channels(channels):
    h = ColorHistogram()(torch.rand(3, channels, 6, 6))
    assert h.shape == (3, 16 * channels)
    torch.testing.assert_close(h.norm(dim=1), torch.ones(3))


def test_histogram_does_not_see_where_and_pixels_do():
    # Class 0 has its bright half above, class 1 below; the colors are the same.
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 40, (40, 3, 8, 8), generator=g)
    y = torch.arange(40) % 2
    x[y == 0, :, :4] += 200
    x[y == 1, :, 4:] += 200
    images = from_pixels(x.to(torch.uint8), y, ("above", "below"))
    found = baselines(KNN(data=labeled(images), ks=(5,)), Means())
    assert found["pixels"] == 1.0
    assert found["color_histogram"] < 0.8
    assert found["untrained"] < 0.8


def test_baselines_see_the_crop_that_the_encoder_sees():
    # What tells the classes apart lies at the border, which the evaluation crop cuts off.
    x = torch.full((12, 3, 16, 16), 100)
    y = torch.arange(12) % 2
    x[y == 1, :, :2] = 255
    images = from_pixels(x.to(torch.uint8), y, ("plain", "bordered"))
    for size, expected in ((16, 1.0), (8, 0.5)):
        crop = replace(TRANSFORM, size=size, resize=16)
        split = Split(torch.arange(8), torch.arange(8, 12))
        knn = KNN(data=labeled(images, transform=crop, split=split), ks=(3,))
        assert baselines(knn, nn.Flatten())["pixels"] == expected


def test_histograms_are_of_the_colors_and_not_of_normalized_values():
    x = torch.full((12, 3, 8, 8), 20)
    y = torch.arange(12) % 2
    x[y == 1] = 80  # below the mean as well, but another quarter of the range
    images = from_pixels(x.to(torch.uint8), y, ("black", "dark"))
    assert baselines(KNN(data=labeled(images), ks=(3,)), Means())["color_histogram"] == 1.0


def test_baselines_have_the_k_and_the_temperature_of_the_other_numbers():
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (80, 3, 8, 8), generator=g, dtype=torch.uint8)
    x[::2, :, :1] //= 2
    data, found = labeled(from_pixels(x, torch.arange(80) % 2, ("a", "b"))), {}
    for k, temperature in ((1, 0.07), (20, 0.01), (20, 0.07)):
        knn = KNN(data=data, ks=(k,), temperature=temperature)
        found[k, temperature] = baselines(knn, Means())["pixels"]
        assert found[k, temperature] == knn(Pixels())["accuracy"]
    assert len({*found.values()}) == 3


def test_chance_is_guessing_the_most_common_class_of_the_training_images():
    train, test = bright(30), bright(10)
    train.labels[:20] = 1
    test.labels[:7] = 0
    test.labels[7:] = torch.tensor([1, 1, 2])
    found = baselines(KNN(data=labeled(train, test=test)), Means())
    assert found["chance"] == pytest.approx(0.2)


def test_chance_is_guessing_the_most_common_class():
    images = bright(40, classes=4)
    images.labels[:20] = 3
    test = bright(40, classes=4, seed=1)
    knn = KNN(data=labeled(images, test=test))
    found = baselines(knn, Means())
    assert found["chance"] == pytest.approx(0.25)
    assert found["untrained"] == knn(Means())["accuracy"]
