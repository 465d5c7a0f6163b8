"""Spatial operations against torchvision, PIL and scipy, image by image."""

import numpy as np
import pytest
import scipy.ndimage
import torch
from PIL import ImageFilter
from torchvision.transforms.v2 import functional as tv

from selfsight.views import spatial
from selfsight.views.spatial import blur, blur_radius, crop, cutout, flip, noise, rotate, sobel


def images(n=4, height=18, width=18):
    return torch.rand(n, 3, height, width, generator=torch.Generator().manual_seed(3))


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0)


@pytest.mark.parametrize("radius", [1, 6, 11])
def test_blur_is_torchvisions_with_a_sigma_for_each_image(radius):
    x, sigmas = images(width=13), [0.1, 0.5, 1.3, 2.0]
    ours = blur(x, torch.tensor(sigmas), radius)
    for i, sigma in enumerate(sigmas):
        close(ours[i], tv.gaussian_blur(x[i], [2 * radius + 1] * 2, [sigma, sigma]))


def test_sigma_0_leaves_an_image_exactly():
    x = images()
    ours = blur(x, torch.tensor([0.0, 1.0, 0.0, 2.0]), 6)
    assert torch.equal(ours[0::2], x[0::2])


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_wide_blur_is_near_pils_three_boxes(sigma):
    smooth = tv.gaussian_blur(images(1, 40, 40), [5, 5], [1.0, 1.0])[0]
    pil = tv.to_pil_image(smooth)
    x, theirs = (
        tv.to_dtype(tv.pil_to_tensor(p), scale=True)
        for p in (pil, pil.filter(ImageFilter.GaussianBlur(sigma)))
    )
    ours = blur(x[None], torch.tensor([sigma]), blur_radius(40, sigma, None))[0]
    inner = (..., slice(8, -8), slice(8, -8))  # PIL repeats the border, torchvision mirrors it
    assert (ours[inner] - theirs[inner]).abs().max() < 3 / 255


def test_blur_kernels_are_a_tenth_of_the_side_or_three_sigma():
    # SimCLR and BYOL: int(side / 10 / 2) pixels on each side
    assert [blur_radius(s, 2.0, 0.1) for s in (224, 96, 32)] == [11, 4, 1]
    assert blur_radius(224, 2.0, None) == 6
    assert blur_radius(4, 2.0, None) == 3  # as far as an image of 4 pixels can be mirrored


def test_flip_mirrors_the_chosen_images_only():
    x = images(2)
    ours = flip(x, torch.tensor([True, False]))
    assert torch.equal(ours, torch.stack([tv.horizontal_flip(x[0]), x[1]]))


def test_rotate_is_torchvisions_for_quarter_turns():
    x = images(4)
    ours = rotate(x, torch.arange(4))
    for turns in range(4):
        assert torch.equal(ours[turns], tv.rotate(x[turns], 90.0 * turns))


def test_cutout_is_torchvisions_erase():
    x, holes = images(2), torch.tensor([[3, 5, 7, 4], [2, 2, 0, 0]])
    fill = (0.1, 0.2, 0.3)
    ours = cutout(x, holes, fill)
    assert torch.equal(ours[0], tv.erase(x[0], 3, 5, 7, 4, torch.tensor(fill)[:, None, None]))
    assert torch.equal(ours[1], x[1])


def test_sobel_is_scipys_gradient_magnitude():
    x = images(2)
    ours = sobel(x, torch.tensor([True, False]))
    for channel, theirs in zip(ours[0], x[0].numpy(), strict=True):
        down, across = (scipy.ndimage.sobel(theirs, axis=a, mode="mirror") for a in (0, 1))
        close(channel, torch.from_numpy(np.hypot(across, down) / 4).clamp(max=1))
    assert torch.equal(ours[1], x[1])


def test_noise_is_torchvisions_gaussian_noise():
    x = images()
    torch.manual_seed(4)
    theirs = tv.gaussian_noise(x, sigma=0.1)
    torch.manual_seed(4)
    close(noise(x, 0.1 * torch.randn_like(x)), theirs)


def test_every_operation_keeps_images_within_0_and_1():
    x = (images() > 0.5).float()
    for made in (
        blur(x, torch.full((4,), 2.0), 6),
        sobel(x, torch.ones(4, dtype=torch.bool)),
        spatial.noise(x, torch.randn_like(x)),
    ):
        assert made.min() >= -1e-6 and made.max() <= 1 + 1e-6


MODES = {"bilinear": tv.InterpolationMode.BILINEAR, "bicubic": tv.InterpolationMode.BICUBIC}
# Shrunk much, shrunk in one direction, enlarged, as it is, one pixel, the whole image
BOXES = [(0, 0, 40, 56), (3, 5, 37, 11), (7, 20, 5, 9), (2, 2, 16, 16), (39, 55, 1, 1)]


def byte_images(dtype=torch.uint8):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (len(BOXES), 3, 40, 56), generator=generator, dtype=dtype)


@pytest.mark.parametrize("interpolation", MODES)
@pytest.mark.parametrize("size", [7, 16, 48])
def test_crop_is_torchvisions_resized_crop_to_1e_6(interpolation, size):
    x = byte_images()
    ours = crop(x.float() / 255, torch.tensor(BOXES), size, interpolation=interpolation)
    mode = MODES[interpolation]
    for i, box in enumerate(BOXES):
        # float64, because torch's own float32 weights are off by some 1e-5
        theirs = tv.resized_crop(x[i].double() / 255, *box, [size, size], mode, antialias=True)
        torch.testing.assert_close(ours[i].double(), theirs.clamp(0, 1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("interpolation", MODES)
def test_crop_of_bytes_is_torchvisions_within_rounding(interpolation):
    # Bytes are rounded, and cut at 0 and 255, after each of the two directions; a smooth image
    # keeps away from the cuts.
    x = tv.gaussian_blur(byte_images(), [9, 9], [2.0, 2.0])
    ours = crop(x.float() / 255, torch.tensor(BOXES), 16, interpolation=interpolation)
    for i, box in enumerate(BOXES):
        theirs = tv.resized_crop(x[i], *box, [16, 16], MODES[interpolation], antialias=True)
        torch.testing.assert_close(255 * ours[i], theirs.float(), atol=1.25, rtol=0)


def test_a_box_of_the_views_size_is_copied_exactly():
    x = byte_images().float() / 255
    box = torch.tensor([[3, 4, 16, 16]]).expand(len(x), 4)
    assert torch.equal(crop(x, box, 16), x[:, :, 3:19, 4:20])
    assert torch.equal(crop(x, box, 16, interpolation="bicubic"), x[:, :, 3:19, 4:20])


def test_a_flipped_crop_is_the_mirror_image_of_the_crop():
    x, box = byte_images().float() / 255, torch.tensor(BOXES)
    chosen = torch.tensor([True, False, True, False, True])
    straight, turned = crop(x, box, 16), crop(x, box, 16, flip=chosen)
    expected = torch.where(chosen[:, None, None, None], straight.flip(3), straight)
    torch.testing.assert_close(turned, expected, atol=1e-6, rtol=0)


def test_pixels_outside_the_box_have_no_effect():
    x, box = byte_images().float() / 255, torch.tensor([[10, 12, 9, 7]]).expand(len(BOXES), 4)
    other = torch.rand_like(x)
    other[:, :, 10:19, 12:19] = x[:, :, 10:19, 12:19]
    for interpolation in MODES:
        one, two = (crop(p, box, 24, interpolation=interpolation) for p in (x, other))
        assert torch.equal(one, two)
