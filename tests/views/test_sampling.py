"""Parameters: torchvision's distributions, and nothing but (seed, epoch, index, view) in them."""

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import ks_2samp
from torchvision.transforms import RandomResizedCrop

from selfsight.views import View, moco_v1, moco_v2
from selfsight.views.sampling import (
    sample_crop_boxes,
    sample_jitter_order,
    sample_view_params,
    view_keys,
)

EVERYTHING = View(
    size=8,
    flip=0.5,
    gray=0.3,
    blur=0.5,
    solarize=0.2,
    rotate=0.5,
    cutout=0.5,
    sobel=0.5,
    noise=0.5,
    second_crop=0.5,
)


def drawn(view, n=4000, shape=(64, 64), *, seed=0, epoch=0, number=0, index=None):
    index = torch.arange(n) if index is None else index
    sizes = torch.tensor([shape]).expand(len(index), 2)
    key = view_keys(seed, number + 1)[number]
    return sample_view_params(view, sizes, index, key=key, epoch=epoch, channels=3)


def torchvision_boxes(view, shape, n):
    torch.manual_seed(0)
    empty = torch.empty(1, *shape)
    params = [RandomResizedCrop.get_params(empty, view.scale, view.ratio) for _ in range(n)]
    return torch.tensor(params)


@pytest.mark.parametrize(
    ("shape", "scale"),
    [
        ((64, 64), (0.08, 1.0)),
        ((48, 100), (0.2, 1.0)),
        ((20, 200), (0.08, 1.0)),  # the longer, the more fall back to the center
        ((200, 20), (0.2, 1.0)),
        ((7, 5), (0.05, 0.14)),
    ],
)
def test_crops_are_distributed_as_torchvisions(shape, scale):
    view, n = View(size=32, scale=scale), 1000
    ours, theirs = drawn(view, n, shape).crop_box, torchvision_boxes(view, shape, n)
    for measure in (
        lambda b: b[:, 0],
        lambda b: b[:, 1],
        lambda b: b[:, 2] * b[:, 3],
        lambda b: b[:, 3] / b[:, 2],
    ):
        assert ks_2samp(measure(ours), measure(theirs), method="asymp").pvalue > 0.001


def test_crops_follow_torchvisions_steps_on_the_same_numbers():
    n, generator = 500, torch.Generator().manual_seed(5)
    u = torch.rand(n, 22, generator=generator, dtype=torch.float64)
    sizes = torch.randint(1, 90, (n, 2), generator=generator)
    scale, ratio = (0.2, 1.0), (3 / 4, 4 / 3)
    boxes = sample_crop_boxes(u[:, :10], u[:, 10:20], u[:, 20:], sizes, scale, ratio)
    fell_back = 0
    for numbers, (height, width), box in zip(
        u.tolist(), sizes.tolist(), boxes.tolist(), strict=True
    ):
        for area, shape in zip(numbers[:10], numbers[10:20], strict=True):
            target = height * width * (scale[0] + (scale[1] - scale[0]) * area)
            low, high = math.log(ratio[0]), math.log(ratio[1])
            aspect = math.exp(low + (high - low) * shape)
            w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
            if 0 < w <= width and 0 < h <= height:
                top, left = int(numbers[20] * (height - h + 1)), int(numbers[21] * (width - w + 1))
                break
        else:
            fell_back += 1
            w, h = width, height
            if width / height < ratio[0]:
                h = round(width / ratio[0])
            elif width / height > ratio[1]:
                w = round(height * ratio[1])
            top, left = (height - h) // 2, (width - w) // 2
        assert box == [top, left, h, w]
    assert fell_back > 20


@pytest.mark.parametrize("shape", [(20, 200), (200, 20), (31, 90), (77, 40), (3, 1)])
def test_where_no_try_fits_the_box_is_torchvisions_center(shape):
    view = View(size=32, scale=(1.0, 1.0))
    assert torch.equal(drawn(view, 5, shape).crop_box, torchvision_boxes(view, shape, 5))


def test_an_image_whose_shape_is_in_range_falls_back_to_itself():
    zeros = torch.zeros(1, 10, dtype=torch.float64)  # every try is 3:4 and as large as the square
    box = sample_crop_boxes(
        zeros, zeros, zeros[:, :2], torch.tensor([[50, 50]]), (1.0, 1.0), (0.75, 4 / 3)
    )
    assert box.tolist() == [[0, 0, 50, 50]]


def test_any_batch_split_draws_the_same():
    whole = drawn(EVERYTHING, 40)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(6))
    parts = [drawn(EVERYTHING, index=part) for part in order.split([1, 25, 14])]
    for field, (name, value) in enumerate(whole._asdict().items()):
        assert torch.equal(torch.cat([p[field] for p in parts]), value[order]), name


def test_seed_epoch_index_and_view_number_each_change_what_is_drawn():
    view, base = moco_v2(32)[0], drawn(moco_v2(32)[0], 50).crop_box
    for other in (
        drawn(view, 50, seed=1),
        drawn(view, 50, epoch=1),
        drawn(view, 50, number=1),
        drawn(view, index=torch.arange(50, 100)),
    ):
        assert (other.crop_box != base).any(dim=1).float().mean() > 0.9


def test_the_epoch_may_be_a_tensor():
    as_tensor = drawn(moco_v2(32)[0], 5, epoch=torch.tensor(7))
    assert torch.equal(as_tensor.crop_box, drawn(moco_v2(32)[0], 5, epoch=7).crop_box)


def test_turning_one_operation_off_leaves_the_other_draws():
    one, two = drawn(EVERYTHING, 50), drawn(replace(EVERYTHING, blur=0.0, flip=0.0), 50)
    assert not two.flip.any() and not two.blur_sigma.any()
    for name in (
        "crop_box",
        "jitter_factors",
        "jitter_order",
        "gray",
        "solarize",
        "quarter_turns",
        "cutout_box",
        "noise",
    ):
        assert torch.equal(getattr(one, name), getattr(two, name)), name


def test_operations_happen_as_often_as_the_view_says():
    view = replace(EVERYTHING, size=2)
    d = drawn(view, 2000)
    happened = {
        "flip": d.flip,
        "jitter": (d.jitter_factors != torch.tensor([1.0, 1.0, 1.0, 0.0])).any(dim=1),
        "gray": d.gray,
        "blur": d.blur_sigma > 0,
        "solarize": d.solarize,
        "rotate": d.quarter_turns > 0,
        "cutout": d.cutout_box[:, 2] > 0,
        "sobel": d.sobel,
        "noise": d.noise.flatten(1).any(dim=1),
    }
    for name, mask in happened.items():
        p = view.probability(name)
        spread = math.sqrt(p * (1 - p) / len(mask))
        assert abs(mask.double().mean().item() - p) < 4 * spread, name


def test_jitter_is_uniform_in_torchvisions_ranges():
    factors = drawn(replace(moco_v1(32)[0], jitter=(0.4, 1.5, 0.2, 0.1))).jitter_factors
    for column, (low, high) in enumerate([(0.6, 1.4), (0.0, 2.5), (0.8, 1.2), (-0.1, 0.1)]):
        even = torch.linspace(low, high, 4000, dtype=torch.float64)
        assert ks_2samp(factors[:, column], even, method="asymp").pvalue > 0.001
        assert low <= factors[:, column].min() and factors[:, column].max() <= high


def test_jitter_orders_are_all_equally_likely():
    orders = drawn(moco_v1(32)[0], 4800).jitter_order
    counts = torch.unique(orders, dim=0, return_counts=True)[1]
    assert len(counts) == 24
    chi_square = ((counts - 200) ** 2 / 200).sum().item()
    assert chi_square < 41.6  # 1 % of chi-square with 23 degrees of freedom


def test_factors_that_a_view_never_uses_take_no_turn():
    u = torch.rand(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    orders = sample_jitter_order(u, (0.4, 0.4, 0.0, 0.0))
    assert {tuple(o) for o in orders.tolist()} == {(0, 1), (1, 0)}


def test_cutout_has_its_center_anywhere_and_stays_inside():
    view = View(size=16, cutout=1.0, cutout_side=0.5)
    top, left, height, width = drawn(view, 500).cutout_box.unbind(1)
    for start, side in ((top, height), (left, width)):
        # A hole of 8 pixels round each of 16 centers, cut at both borders
        assert set(zip(start.tolist(), (start + side).tolist(), strict=True)) == {
            (max(0, c - 4), min(16, c + 4)) for c in range(16)
        }


def test_noise_is_standard_normal_times_its_sigma():
    grain = drawn(View(size=8, noise=1.0, noise_sigma=0.2), 100).noise
    assert grain.std().item() == pytest.approx(0.2, rel=0.02)
    assert abs(grain.mean().item()) < 0.01
