import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import auto_augment as timms

from selfsight.evals.randaugment import GEOMETRIC, OPERATIONS, apply, rand_augment

FILL = (128, 128, 128)
MEAN = (128 / 255,) * 3


@pytest.fixture(scope="module")
def image():
    g = torch.Generator().manual_seed(0)
    small = torch.rand(1, 3, 8, 8, generator=g)
    x = torch.nn.functional.interpolate(small, size=48, mode="bicubic").clamp(0, 1)
    x = 0.1 + 0.7 * x
    return (x * 255).round() / 255


def by_timm(name, image, level, sign):
    """The same operation of timm, on a PIL image, with the magnitude that "inc1" gives it."""
    move = {"fillcolor": FILL, "resample": Image.Resampling.BILINEAR}
    factor = max(0.1, 1 + 0.9 * level * sign)
    return {
        "autocontrast": lambda: timms.auto_contrast(image),
        "equalize": lambda: timms.equalize(image),
        "invert": lambda: timms.invert(image),
        "rotate": lambda: timms.rotate(image, 30 * level * sign, **move),
        "posterize": lambda: timms.posterize(image, 4 - int(4 * level)),
        "solarize": lambda: timms.solarize(image, 256 - int(256 * level)),
        "solarize_add": lambda: timms.solarize_add(image, int(110 * level)),
        "color": lambda: timms.color(image, factor),
        "contrast": lambda: timms.contrast(image, factor),
        "brightness": lambda: timms.brightness(image, factor),
        "sharpness": lambda: timms.sharpness(image, factor),
        "shear_x": lambda: timms.shear_x(image, 0.3 * level * sign, **move),
        "shear_y": lambda: timms.shear_y(image, 0.3 * level * sign, **move),
        "translate_x": lambda: timms.translate_x_rel(image, 0.45 * level * sign, **move),
        "translate_y": lambda: timms.translate_y_rel(image, 0.45 * level * sign, **move),
    }[name]()


@pytest.mark.parametrize(("level", "sign"), [(0.9, 1.0), (0.37, -1.0)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_timms(image, name, level, sign):
    found = apply(name, image, torch.tensor([level]), torch.tensor([sign]), MEAN)
    pil_image = Image.fromarray((image[0] * 255).byte().permute(1, 2, 0).numpy())
    expected = np.asarray(by_timm(name, pil_image, level, sign)).astype(float)
    off = np.abs(found[0].permute(1, 2, 0).numpy() * 255 - expected)
    assert not torch.equal(found, image)
    if name in GEOMETRIC:  # the two fill a seam of one pixel at the border otherwise
        assert (off > 2).mean() < 0.06 and np.median(off) < 1
    else:
        assert off.max() < 1.5


def test_each_image_has_its_own_magnitude(image):
    two = image.expand(2, -1, -1, -1)
    level, sign = torch.tensor([0.2, 0.8]), torch.tensor([1.0, -1.0])
    for name in OPERATIONS:
        together = apply(name, two, level, sign, MEAN)
        for i in range(2):
            alone = apply(name, image, level[i : i + 1], sign[i : i + 1], MEAN)
            torch.testing.assert_close(together[i : i + 1], alone)


def augmented(x, index, epoch=0):
    return rand_augment(x, index, magnitude=9.0, std=0.5, mean=MEAN, seed=0, epoch=epoch)


def test_a_quarter_stays_as_it_is(image):
    x = image[:, :, :8, :8].expand(2000, -1, -1, -1)
    same = (augmented(x, torch.arange(2000)) == x).flatten(1).all(dim=1).double().mean().item()
    # Two operations, each left out half the time; a few change nothing in this image.
    assert 0.22 < same < 0.32


def test_an_image_is_changed_alike_in_any_batch(image):
    x = image.expand(6, -1, -1, -1)
    index = torch.tensor([5, 9, 2, 7, 7, 1])
    at = torch.tensor([0, 0, 3, 1, 2, 1])[:, None]
    whole = augmented(x, index, at)
    for i in range(6):
        torch.testing.assert_close(whole[i : i + 1], augmented(x[:1], index[i : i + 1], at[i]))
    assert not torch.equal(augmented(x, index, at + 10), whole)
