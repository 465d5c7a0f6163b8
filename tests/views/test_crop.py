"""Crops against torchvision's resized_crop with antialias, image by image."""

import pytest
import torch
from torchvision.transforms.v2 import functional as tv

from selfsight.views.spatial import center_crop, crop
from selfsight.views.spec import EvalView

MODES = {"bilinear": tv.InterpolationMode.BILINEAR, "bicubic": tv.InterpolationMode.BICUBIC}
# Shrunk much, shrunk in one direction, enlarged, as it is, one pixel, the whole image
BOXES = [(0, 0, 40, 56), (3, 5, 37, 11), (7, 20, 5, 9), (2, 2, 16, 16), (39, 55, 1, 1)]


def images(dtype=torch.uint8):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (len(BOXES), 3, 40, 56), generator=generator, dtype=dtype)


@pytest.mark.parametrize("interpolation", MODES)
@pytest.mark.parametrize("size", [7, 16, 48])
def test_crop_is_torchvisions_resized_crop_to_1e_6(interpolation, size):
    x = images()
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
    x = tv.gaussian_blur(images(), [9, 9], [2.0, 2.0])
    ours = crop(x.float() / 255, torch.tensor(BOXES), 16, interpolation=interpolation)
    for i, box in enumerate(BOXES):
        theirs = tv.resized_crop(x[i], *box, [16, 16], MODES[interpolation], antialias=True)
        torch.testing.assert_close(255 * ours[i], theirs.float(), atol=1.25, rtol=0)


def test_a_box_of_the_views_size_is_copied_exactly():
    x = images().float() / 255
    box = torch.tensor([[3, 4, 16, 16]]).expand(len(x), 4)
    assert torch.equal(crop(x, box, 16), x[:, :, 3:19, 4:20])
    assert torch.equal(crop(x, box, 16, interpolation="bicubic"), x[:, :, 3:19, 4:20])


def test_a_flipped_crop_is_the_mirror_image_of_the_crop():
    x, box = images().float() / 255, torch.tensor(BOXES)
    chosen = torch.tensor([True, False, True, False, True])
    straight, turned = crop(x, box, 16), crop(x, box, 16, flip=chosen)
    expected = torch.where(chosen[:, None, None, None], straight.flip(3), straight)
    torch.testing.assert_close(turned, expected, atol=1e-6, rtol=0)


def test_what_lies_outside_the_box_is_never_seen():
    x, box = images().float() / 255, torch.tensor([[10, 12, 9, 7]]).expand(len(BOXES), 4)
    other = torch.rand_like(x)
    other[:, :, 10:19, 12:19] = x[:, :, 10:19, 12:19]
    for interpolation in MODES:
        one, two = (crop(p, box, 24, interpolation=interpolation) for p in (x, other))
        assert torch.equal(one, two)


@pytest.mark.parametrize("interpolation", MODES)
@pytest.mark.parametrize(("resize", "size"), [(32, 28), (20, 20), (64, 33), (17, 8)])
def test_center_is_torchvisions_resize_and_center_crop_to_1e_6(interpolation, resize, size):
    shapes = [(40, 56), (56, 40), (33, 33), (21, 50), (47, 46)]
    padded = torch.randint(0, 256, (len(shapes), 3, 56, 56), dtype=torch.uint8)
    spec = EvalView(size=size, resize=resize, interpolation=interpolation)
    ours = center_crop(padded.float() / 255, torch.tensor(shapes), spec)
    for i, (h, w) in enumerate(shapes):
        own = padded[i, :, :h, :w].double() / 255
        theirs = tv.resize(own, [resize], MODES[interpolation], antialias=True).clamp(0, 1)
        theirs = tv.center_crop(theirs, [size, size])
        torch.testing.assert_close(ours[i].double(), theirs, atol=1e-6, rtol=0)
