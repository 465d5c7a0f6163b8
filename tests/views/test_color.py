"""Color operations against torchvision's functional versions, to 1e-6."""

import itertools

import pytest
import torch
from torchvision.transforms.v2 import functional as tv

from selfsight.views.color import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    SATURATION,
    gray,
    jitter,
    normalize,
    shift_hue,
    solarize,
)

ADJUST = {
    BRIGHTNESS: tv.adjust_brightness,
    CONTRAST: tv.adjust_contrast,
    SATURATION: tv.adjust_saturation,
    HUE: tv.adjust_hue,
}
FACTORS = torch.tensor([[0.6, 1.4, 0.3, -0.5], [1.8, 0.2, 1.7, 0.13], [1.0, 1.0, 1.0, 0.5]])


def images(channels=3):
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(3, channels, 12, 10, generator=generator)
    x[:, :, 0] = x[:, :1, 0]  # grays have no hue
    x[:, :, 1] = (x[:, :, 1] > 0.5).float()  # black, white and pure colors
    return x


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("operation", [BRIGHTNESS, CONTRAST, SATURATION])
def test_each_blend_is_torchvisions(operation):
    x, order = images(), torch.full((3, 1), operation)
    ours = jitter(x, FACTORS, order, hue=False)
    for i in range(3):
        close(ours[i], ADJUST[operation](x[i], FACTORS[i, operation].item()))


@pytest.mark.parametrize("turn", [-0.5, -0.1, 0.0, 0.07, 0.25, 0.5])
def test_hue_is_torchvisions(turn):
    x = images()
    close(shift_hue(x, torch.full((3,), turn)), tv.adjust_hue(x, turn))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_jitter_in_every_order_is_torchvisions_one_after_another(order):
    x = images()
    orders = torch.tensor([order, order[::-1], order])  # neighbors have orders of their own
    ours = jitter(x, FACTORS, orders, hue=True)
    for i in range(3):
        theirs = x[i]
        for operation in orders[i].tolist():
            theirs = ADJUST[operation](theirs, FACTORS[i, operation].item())
        close(ours[i], theirs)


def test_jitter_without_hue_is_torchvisions():
    x, orders = images(), torch.tensor([[0, 1, 2], [2, 0, 1], [1, 2, 0]])
    ours = jitter(x, FACTORS, orders, hue=False)
    for i in range(3):
        theirs = x[i]
        for operation in orders[i].tolist():
            theirs = ADJUST[operation](theirs, FACTORS[i, operation].item())
        close(ours[i], theirs)


def test_jitter_that_is_not_drawn_leaves_the_image():
    x, factors = images(), torch.tensor([[1.0, 1.0, 1.0, 0.0]]).expand(3, 4)
    close(jitter(x, factors, torch.tensor([[3, 1, 0, 2]]).expand(3, 4), hue=True), x)


def test_brightness_and_contrast_of_one_channel_are_torchvisions():
    x, orders = images(channels=1), torch.tensor([[0, 1], [1, 0], [1, 0]])
    ours = jitter(x, FACTORS, orders, hue=False)
    for i in range(3):
        theirs = x[i]
        for operation in orders[i].tolist():
            theirs = ADJUST[operation](theirs, FACTORS[i, operation].item())
        close(ours[i], theirs)


def test_contrast_of_five_channels_blends_with_the_mean_of_all():
    x = images(channels=5)
    ours = jitter(x, FACTORS, torch.full((3, 1), CONTRAST), hue=False)
    f = FACTORS[:, CONTRAST, None, None, None]
    close(ours, (f * x + (1 - f) * x.mean(dim=(1, 2, 3), keepdim=True)).clamp(0, 1))


def test_gray_is_torchvisions_for_the_chosen_images_only():
    x = images()
    ours = gray(x, torch.tensor([True, False, True]))
    close(ours[0::2], tv.rgb_to_grayscale(x[0::2], num_output_channels=3))
    assert torch.equal(ours[1], x[1])


@pytest.mark.parametrize("threshold", [0.5, 0.2])
def test_solarize_is_torchvisions_for_the_chosen_images_only(threshold):
    x = images()
    ours = solarize(x, torch.tensor([True, False, True]), threshold)
    assert torch.equal(ours[0::2], tv.solarize(x[0::2], threshold))
    assert torch.equal(ours[1], x[1])


def test_normalize_is_torchvisions():
    x, mean, std = images(), (0.4, 0.5, 0.6), (0.2, 0.3, 0.1)
    close(normalize(x, mean, std), tv.normalize(x, list(mean), list(std)))
    close(normalize(x, (0.4,), (0.2,)), tv.normalize(x, [0.4] * 3, [0.2] * 3))
