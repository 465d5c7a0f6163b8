"""The evaluation transform is torchvision's, of any form of an image and on any machine."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from selfsight.data.eval_transform import EvalTransform, standard_transform, with_size
from selfsight.errors import UserError
from tests.data.image_files import encoded, png

SHAPES = [(128, 128), (128, 171), (375, 500), (500, 333), (97, 401), (40, 32), (600, 37)]


def photo(height, width, seed=0, channels=3):
    """Smooth shapes, edges and some noise: what a resize gets wrong shows at edges."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / 24
    waves = np.stack([np.sin(x + c) * np.cos(y * (c + 1)) for c in range(channels)], axis=2)
    edges = 60.0 * ((x.astype(int) + y.astype(int)) % 2)[..., None]
    noise = rng.normal(0, 15, (height, width, channels))
    return np.clip(110 + 70 * waves + edges + noise, 0, 255).astype(np.uint8)


def torchvisions(pixels, transform):
    """Resize and center crop of torchvision, on bytes."""
    kind = v2.InterpolationMode(transform.interpolation)
    size = [transform.resize] if transform.keep_aspect else [transform.resize] * 2
    resize = v2.Resize(size, interpolation=kind, antialias=True)
    return v2.CenterCrop(transform.size)(resize(torch.from_numpy(pixels).permute(2, 0, 1)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_crops_are_torchvisions_within_one_gray_level(shape, interpolation):
    pixels = photo(*shape)
    for size, resize, keep_aspect in ((128, 146, True), (32, 32, True), (56, 64, False)):
        transform = EvalTransform(
            size=size, resize=resize, keep_aspect=keep_aspect, interpolation=interpolation
        )
        ours = torch.from_numpy(transform.crop(pixels)).permute(2, 0, 1)
        theirs = torchvisions(pixels, transform)
        assert ours.shape == theirs.shape
        assert (ours.int() - theirs.int()).abs().max() <= 1


def test_the_whole_transform_is_torchvisions():
    pixels, transform = photo(200, 150), standard_transform(112)
    theirs = v2.Compose(
        [v2.ToDtype(torch.float32, scale=True), v2.Normalize(transform.mean, transform.std)]
    )(torchvisions(pixels, transform))
    torch.testing.assert_close(transform(pixels), theirs, atol=1.1 / 255 / 0.22, rtol=0)
    same = replace(transform, size=112, resize=112)
    exact = same(pixels[:112, :112])
    theirs = v2.functional.normalize(
        torch.from_numpy(pixels[:112, :112]).permute(2, 0, 1) / 255, same.mean, same.std
    )
    assert torch.equal(exact, theirs)


def test_every_form_of_an_image_gives_the_same(tmp_path):
    pixels, transform = photo(60, 90), standard_transform(48)
    (tmp_path / "a.png").write_bytes(png(pixels))
    forms = [
        pixels,
        torch.from_numpy(pixels).permute(2, 0, 1),
        Image.fromarray(pixels),
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
    ]
    expected = transform(pixels)
    assert expected.shape == (3, 48, 48)
    assert all(torch.equal(transform(form), expected) for form in forms)
    assert torch.equal(transform(forms), torch.stack([expected] * len(forms)))
    assert transform(torch.stack([forms[1]] * 2)).shape == (2, 3, 48, 48)
    assert transform([]).shape == (0, 3, 48, 48)


def test_a_photo_is_upright_before_it_is_cropped():
    pixels, exif = photo(61, 80), Image.Exif()
    exif[0x0112] = 6  # to be turned to the right
    turned = np.ascontiguousarray(np.rot90(pixels))
    image = Image.open(io.BytesIO(encoded(Image.fromarray(turned), "PNG", exif=exif.tobytes())))
    transform = standard_transform(32)
    assert torch.equal(transform(image), transform(pixels))


def test_gray_images_and_transparent_ones_become_what_the_encoder_expects():
    gray = photo(40, 50, channels=1)
    color, single = standard_transform(32), standard_transform(32, channels=1)
    assert torch.equal(color(gray), color(np.repeat(gray, 3, axis=2)))
    assert single(photo(40, 50)).shape == (1, 32, 32)
    clear = np.concatenate([photo(40, 50), np.zeros((40, 50, 1), np.uint8)], axis=2)
    white = np.full((40, 50, 3), 255, np.uint8)
    assert torch.equal(color(clear), color(white))


def test_a_very_long_image_is_cropped_in_its_center():
    """A strip of 2 x 40,000 pixels would otherwise be resized to 128 x 2.6 million."""
    strip = np.zeros((2, 40_000, 3), np.uint8)
    strip[:, 19_990:20_010] = 255
    crop = EvalTransform(size=128, resize=128).crop(strip)
    assert crop.shape == (128, 128, 3) and crop.min() == 255


def test_the_standard_transform_crops_seven_eighths_of_large_images_only():
    assert (standard_transform(224).resize, standard_transform(32).resize) == (256, 32)
    assert standard_transform(32, channels=1).mean == pytest.approx((0.449,))


def test_another_size_keeps_the_crop_share():
    native = EvalTransform(size=224, resize=232, interpolation="bicubic")
    assert with_size(native, 224) == native
    assert with_size(native, 448).resize == 464
    timm = EvalTransform(size=224, resize=248)  # floor of 224 / 0.9
    assert with_size(timm, 224) == timm


def test_mistakes_get_a_sentence(tmp_path):
    transform = standard_transform(32)
    with pytest.raises(UserError, match="Raise resize to 224"):
        EvalTransform(size=224, resize=200)
    with pytest.raises(UserError, match="3 numbers but the images have 1 channels"):
        EvalTransform(channels=1)
    with pytest.raises(UserError, match=r"float32.*uint8 are expected"):
        transform(torch.rand(3, 40, 40))
    with pytest.raises(UserError, match=r"missing\.jpg cannot be read: there is no such file"):
        transform("missing.jpg")
    (tmp_path / "x.jpg").write_bytes(b"text")
    with pytest.raises(UserError, match=r"x\.jpg cannot be read"):
        transform(tmp_path / "x.jpg")
