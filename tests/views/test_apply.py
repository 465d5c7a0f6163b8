"""Whole views: torchvision's functions in the view's order, whatever the batch and the device."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.transforms.v2 import functional as tv

from selfsight.errors import UserError
from selfsight.views import PRESETS, View, apply_views_reference, for_channels, moco_v2, swav
from selfsight.views.sampling import sample_view_params, view_keys
from selfsight.views.spatial import blur_radius

ADJUST = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)
EVERYTHING = View(
    size=12,
    flip=0.5,
    gray=0.3,
    blur=0.5,
    solarize=0.3,
    rotate=0.5,
    cutout=0.5,
    sobel=0.3,
    noise=0.5,
    second_crop=0.5,
)
PLAIN = View(size=24, flip=0.0, jitter_p=0.0, gray=0.0, blur=0.0)


def batch(n=12, channels=3, side=40, seed=8):
    """Images of different shapes in one padded tensor."""
    generator = torch.Generator().manual_seed(seed)
    shape = (n, channels, side, side)
    pixels = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    sizes = torch.randint(side // 2, side + 1, (n, 2), generator=generator)
    return pixels, sizes, torch.arange(100, 100 + n)


def with_torchvision(view, image, d, i):
    """The drawn view of image i by torchvision's functions, one after another, in float64."""
    mode = tv.InterpolationMode(view.interpolation)
    size = [view.size, view.size]
    x = tv.resized_crop(image.double() / 255, *d.crop_box[i].tolist(), size, mode, antialias=True)
    x = x.clamp(0, 1)
    for name in view.order:
        if name == "flip" and d.flip[i]:
            x = tv.horizontal_flip(x)
        if name == "jitter":
            for operation in d.jitter_order[i].tolist():
                x = ADJUST[operation](x, d.jitter_factors[i, operation].item())
        if name == "gray" and d.gray[i]:
            x = tv.rgb_to_grayscale(x, num_output_channels=3)
        if name == "blur" and d.blur_sigma[i] > 0:
            radius = blur_radius(view.size, view.blur_sigma[1], view.blur_kernel)
            x = tv.gaussian_blur(x, [2 * radius + 1] * 2, [d.blur_sigma[i].item()] * 2)
        if name == "solarize" and d.solarize[i]:
            x = tv.solarize(x, view.solarize_threshold)
    return tv.normalize(x, list(view.mean), list(view.std))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_torchvisions_functions_in_its_order(name):
    views = swav(24, counts=(1, 2)) if name == "swav" else PRESETS[name](24)
    pixels, sizes, index = batch(8)
    made = apply_views_reference(views, pixels, sizes, index, seed=3, epoch=2)
    assert len(made) == len(views)
    for view, key, ours in zip(views, view_keys(3, len(views)), made, strict=True):
        d = sample_view_params(view, sizes, index, key=key, epoch=2, channels=3)
        for i, (h, w) in enumerate(sizes.tolist()):
            theirs = with_torchvision(view, pixels[i, :, :h, :w], d, i)
            wrong = (ours[i] - theirs).abs() > 1e-5
            # torchvision's hue is float32, and a pixel at solarize's threshold may go either way
            assert wrong.double().mean() < 1e-3


def test_any_batch_split_and_any_neighbors_give_the_same_views():
    pixels, sizes, index = batch()
    views = (EVERYTHING, *moco_v2(24, interpolation="bicubic"))
    whole = apply_views_reference(views, pixels, sizes, index, seed=0, epoch=1)
    parts = [
        apply_views_reference(views, pixels[s], sizes[s], index[s], seed=0, epoch=1)
        for s in (slice(0, 1), slice(1, 8), slice(8, 12))
    ]
    for view, together in enumerate(whole):
        apart = torch.cat([part[view] for part in parts])
        torch.testing.assert_close(apart, together, atol=1e-5, rtol=0)


def test_the_padding_is_never_seen():
    pixels, sizes, index = batch()
    inside = torch.arange(40) < sizes[:, :, None]  # [N, 2, side]
    keep = inside[:, 0, None, :, None] & inside[:, 1, None, None, :]
    other = torch.where(keep, pixels, 255 - pixels)
    wider = torch.nn.functional.pad(other, (0, 9, 0, 3), value=77)
    for changed in (other, wider):
        for one, two in zip(
            apply_views_reference(moco_v2(24), pixels, sizes, index, seed=0, epoch=0),
            apply_views_reference(moco_v2(24), changed, sizes, index, seed=0, epoch=0),
            strict=True,
        ):
            torch.testing.assert_close(one, two, atol=1e-5, rtol=0)


def test_a_view_that_changes_nothing_is_the_normalized_image():
    pixels, _, index = batch(side=24)
    sizes = torch.full((len(index), 2), 24)
    plain = View(
        size=24, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, jitter_p=0.0, gray=0.0, blur=0.0
    )
    (ours,) = apply_views_reference((plain,), pixels, sizes, index, seed=0, epoch=0)
    theirs = tv.normalize(pixels.float() / 255, list(plain.mean), list(plain.std))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("order", [("second_crop", "solarize"), ("solarize", "second_crop")])
def test_a_second_crop_is_torchvisions_at_its_place_in_the_order(order):
    view = replace(PLAIN, second_crop=0.5, solarize=1.0, order=order, interpolation="bicubic")
    pixels, sizes, index = batch()
    ours = apply_views_reference((view,), pixels, sizes, index, seed=3, epoch=1)[0]
    key = view_keys(3, 1)[0]
    d = sample_view_params(view, sizes, index, key=key, epoch=1, channels=3)
    whole, mode = [0, 0, view.size, view.size], tv.InterpolationMode("bicubic")
    boxes = d.second_crop_box.tolist()
    assert 0 < sum(box != whole for box in boxes) < len(boxes)
    for i, (height, width) in enumerate(sizes.tolist()):
        x = pixels[i, :, :height, :width].double() / 255
        square = [view.size] * 2
        x = tv.resized_crop(x, *d.crop_box[i].tolist(), square, mode, antialias=True).clamp(0, 1)
        for name in order:
            if name == "solarize":
                x = tv.solarize(x, view.solarize_threshold)
            else:
                x = tv.resized_crop(x, *boxes[i], square, mode, antialias=True).clamp(0, 1)
        x = tv.normalize(x, list(view.mean), list(view.std))
        torch.testing.assert_close(ours[i].double(), x, atol=2e-5, rtol=0)


def test_a_center_crop_is_torchvisions_largest_square():
    pixels, sizes, index = batch()
    view = replace(PLAIN, crop="center")
    ours = apply_views_reference((view,), pixels, sizes, index, seed=3, epoch=1)[0]
    for i, (height, width) in enumerate(sizes.tolist()):
        x = pixels[i, :, :height, :width].double() / 255
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        x = tv.resized_crop(x, top, left, side, side, [view.size] * 2, antialias=True)
        x = tv.normalize(x, list(view.mean), list(view.std))
        torch.testing.assert_close(ours[i].double(), x, atol=2e-5, rtol=0)


def test_a_shared_crop_is_that_of_the_first_view_and_nothing_else_is_shared():
    pixels, sizes, index = batch()
    noisy = replace(PLAIN, noise=1.0)
    views = (noisy, replace(PLAIN, crop="shared"), replace(noisy, crop="shared"), PLAIN)
    first, crop, other, own = apply_views_reference(views, pixels, sizes, index, seed=3, epoch=1)
    plain = apply_views_reference((PLAIN,), pixels, sizes, index, seed=3, epoch=1)[0]
    assert torch.equal(crop, plain)  # the first view's crop, without its noise
    assert not torch.equal(own, plain)
    added = (first - plain, other - plain)
    assert all(noise.std() > 0.1 for noise in added) and not torch.allclose(*added, atol=0.1)


def test_the_order_of_operations_matters():
    pixels, sizes, index = batch()
    always = View(size=24, gray=1.0, jitter=(0.0, 0.0, 0.4, 0.4), jitter_p=1.0, blur=0.0, flip=0.0)
    gray_last = replace(always, order=("jitter", "gray"))
    gray_first = replace(always, order=("gray", "jitter"))
    one, two = (
        apply_views_reference((v,), pixels, sizes, index, seed=0, epoch=0)[0]
        for v in (gray_last, gray_first)
    )
    assert (one - two).abs().max() > 0.1


def test_flipping_early_equals_flipping_in_its_place():
    # Only because everything before it treats left and right alike; a turn does not.
    pixels, sizes, index = batch()
    last = View(size=24, solarize=0.5, order=("jitter", "gray", "blur", "solarize", "flip"))
    first = replace(last, order=("flip", "jitter", "gray", "blur", "solarize"))
    one, two = (
        apply_views_reference((v,), pixels, sizes, index, seed=0, epoch=0)[0] for v in (last, first)
    )
    torch.testing.assert_close(one, two, atol=1e-5, rtol=0)

    turned = View(
        size=24, rotate=1.0, flip=1.0, jitter_p=0.0, gray=0.0, blur=0.0, order=("rotate", "flip")
    )
    (both,) = apply_views_reference((turned,), pixels, sizes, index, seed=0, epoch=0)
    (alone,) = apply_views_reference(
        (replace(turned, flip=0.0),), pixels, sizes, index, seed=0, epoch=0
    )
    assert torch.equal(both, alone.flip(3))


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_for_channels_adapts_a_view_to_any_number_of_channels(channels):
    pixels, sizes, index = batch(channels=channels)
    views = tuple(for_channels(v, channels) for v in (EVERYTHING, *moco_v2(16)))
    made = apply_views_reference(views, pixels, sizes, index, seed=0, epoch=0)
    assert [tuple(m.shape) for m in made] == [(12, channels, s, s) for s in (12, 16, 16)]
    # Every channel by the same numbers: a channel alone comes out as it does among others
    plain = replace(views[1], jitter_p=0.0)
    together = apply_views_reference((plain,), pixels, sizes, index, seed=0, epoch=0)[0]
    alone = apply_views_reference((plain,), pixels[:, -1:], sizes, index, seed=0, epoch=0)[0]
    torch.testing.assert_close(together[:, -1:], alone, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("view", "setting"),
    [
        (View(size=8, jitter=(0.0, 0.0, 0.2, 0.0), gray=0.0), "jitter's saturation"),
        (View(size=8, jitter=(0.0, 0.0, 0.0, 0.2), gray=0.0), "jitter's hue"),
        (View(size=8, jitter_p=0.0, gray=0.2), "gray"),
    ],
)
def test_colors_that_images_do_not_have_are_refused_by_name(view, setting):
    pixels, sizes, index = batch(channels=4)
    view = replace(view, mean=(0.5,), std=(0.2,))
    with pytest.raises(UserError, match=rf"4 channels.*Set {setting} to 0"):
        apply_views_reference((view,), pixels, sizes, index, seed=0, epoch=0)


def test_statistics_for_another_number_of_channels_are_refused():
    pixels, sizes, index = batch(channels=1)
    with pytest.raises(UserError, match="3 numbers but the images have 1 channels"):
        apply_views_reference(moco_v2(8), pixels, sizes, index, seed=0, epoch=0)


def test_autocast_does_not_round_the_views():
    pixels, sizes, index = batch()
    exact = apply_views_reference(moco_v2(16), pixels, sizes, index, seed=0, epoch=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = apply_views_reference(moco_v2(16), pixels, sizes, index, seed=0, epoch=0)
    assert all(torch.equal(a, b) for a, b in zip(exact, mixed, strict=True))


def test_no_value_is_read_back():
    with FakeTensorMode():  # its tensors have shapes but no values, and refuse to give one
        pixels = torch.empty(6, 3, 40, 40, dtype=torch.uint8)
        sizes, index = torch.empty(6, 2, dtype=torch.int64), torch.arange(6)
        made = apply_views_reference(
            (EVERYTHING, moco_v2(16)[0]), pixels, sizes, index, seed=0, epoch=0
        )
    assert [m.shape[2] for m in made] == [12, 16]


COMPILED = """
import torch
from selfsight.views import byol, apply_views_reference
from selfsight.views.apply import apply_views_with_keys
from selfsight.views.sampling import view_keys
pixels = torch.randint(0, 256, (6, 3, 40, 40), dtype=torch.uint8)
sizes, index, epoch = torch.full((6, 2), 40), torch.arange(6), torch.tensor(3)
compiled = torch.compile(apply_views_with_keys, backend="eager", fullgraph=True)
ours = compiled(byol(16), view_keys(0, 2), pixels, sizes, index, epoch)
plain = apply_views_reference(byol(16), pixels, sizes, index, seed=0, epoch=3)
assert all(torch.equal(a, b) for a, b in zip(ours, plain))
"""


@pytest.mark.slow
def test_views_trace_as_one_graph():
    # In a process of its own, without the type checks that tests put round every function
    subprocess.run([sys.executable, "-c", COMPILED], check=True)


@pytest.mark.gpu
def test_cpu_and_gpu_draw_the_same_and_make_the_same_views():
    pixels, sizes, index = batch(64)
    views = (EVERYTHING, *moco_v2(24, interpolation="bicubic"))
    there = [t.cuda() for t in (pixels, sizes, index)]
    for view, key in zip(views, view_keys(0, 3), strict=True):
        cpu = sample_view_params(view, sizes, index, key=key, epoch=1, channels=3)
        gpu = sample_view_params(view, *there[1:], key=key, epoch=1, channels=3)
        for name, value in cpu._asdict().items():
            other = getattr(gpu, name)
            if value is None:
                assert other is None
            elif name == "noise":  # logarithms and cosines may differ in the last place
                torch.testing.assert_close(other.cpu(), value, atol=1e-6, rtol=0)
            else:
                assert torch.equal(other.cpu(), value), name
    cpu = apply_views_reference(views, pixels, sizes, index, seed=0, epoch=1)
    gpu = apply_views_reference(views, *there, seed=0, epoch=1)
    for one, other in zip(cpu, gpu, strict=True):
        wrong = (one - other.cpu()).abs() > 1e-4
        assert wrong.double().mean() < 1e-4  # a pixel at solarize's threshold may go either way


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.gpu
def test_the_host_never_waits_for_the_gpu():
    there = [t.cuda() for t in batch(16)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        apply_views_reference((EVERYTHING, *moco_v2(24)), *there, seed=0, epoch=1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
