"""The presets hold the numbers of the papers' code, row by row."""

from itertools import pairwise

import pytest

from selfsight.errors import UserError
from selfsight.views import (
    PRESETS,
    barlow_twins,
    byol,
    moco_v1,
    moco_v2,
    moco_v3,
    msbreg,
    simclr,
    simo,
    swav,
    without_blur,
)

BYOL_JITTER = (0.4, 0.4, 0.2, 0.1)
# scale, jitter, jitter_p, gray, blur, solarize
ROWS = {
    "moco_v1": [((0.2, 1), (0.4, 0.4, 0.4, 0.4), 1.0, 0.2, 0.0, 0.0)] * 2,
    "moco_v2": [((0.2, 1), (0.4, 0.4, 0.4, 0.1), 0.8, 0.2, 0.5, 0.0)] * 2,
    "simo": [((0.2, 1), (0.4, 0.4, 0.4, 0.1), 0.8, 0.2, 0.5, 0.0)] * 2,
    "simclr": [((0.08, 1), (0.8, 0.8, 0.8, 0.2), 0.8, 0.2, 0.5, 0.0)] * 2,
    "byol": [
        ((0.08, 1), BYOL_JITTER, 0.8, 0.2, 1.0, 0.0),
        ((0.08, 1), BYOL_JITTER, 0.8, 0.2, 0.1, 0.2),
    ],
    "moco_v3": [
        ((0.2, 1), BYOL_JITTER, 0.8, 0.2, 1.0, 0.0),
        ((0.2, 1), BYOL_JITTER, 0.8, 0.2, 0.1, 0.2),
    ],
    "barlow_twins": [
        ((0.08, 1), BYOL_JITTER, 0.8, 0.2, 1.0, 0.0),
        ((0.08, 1), BYOL_JITTER, 0.8, 0.2, 0.1, 0.2),
    ],
    "msbreg": [((0.08, 1), BYOL_JITTER, 0.8, 0.2, 1.0, 0.2)] * 2,
    "swav": [((0.14, 1), (0.8, 0.8, 0.8, 0.2), 0.8, 0.2, 0.5, 0.0)] * 2
    + [((0.05, 0.14), (0.8, 0.8, 0.8, 0.2), 0.8, 0.2, 0.5, 0.0)] * 6,
}


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_the_papers_row(name):
    views = PRESETS[name]()
    found = [(v.scale, v.jitter, v.jitter_p, v.gray, v.blur, v.solarize) for v in views]
    assert found == ROWS[name]
    for view in views:
        assert (view.flip, view.blur_sigma, view.solarize_threshold) == (0.5, (0.1, 2.0), 0.5)
        assert (view.mean, view.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        assert view.rotate == view.cutout == view.sobel == view.noise == 0


@pytest.mark.parametrize(
    ("views", "order"),
    [
        (moco_v1(), "gray jitter flip"),
        (moco_v2(), "jitter gray blur flip"),
        (moco_v3(), "jitter gray blur solarize flip"),
        (simo(), "jitter blur gray flip"),
        (simclr(), "flip jitter gray blur"),
        (swav(), "flip jitter gray blur"),
        (byol(), "flip jitter gray blur solarize"),
        (barlow_twins(), "flip jitter gray blur solarize"),
    ],
)
def test_operations_come_in_the_order_of_the_papers_code(views, order):
    for view in views:
        for earlier, later in pairwise(order.split()):
            assert view.order.index(earlier) < view.order.index(later)


def test_kernels_are_a_tenth_of_the_side_for_simclr_and_byol_and_pils_elsewhere():
    tenth = {name for name, preset in PRESETS.items() if preset()[0].blur_kernel == 0.1}
    wide = {name for name, preset in PRESETS.items() if preset()[0].blur_kernel is None}
    assert tenth == {"simclr", "byol"} and wide == set(PRESETS) - tenth


def test_crops_are_bicubic_where_the_papers_code_says_so():
    cubic = {name for name, preset in PRESETS.items() if preset()[0].interpolation == "bicubic"}
    assert cubic == {"simclr", "byol", "barlow_twins"}
    assert moco_v2(interpolation="bicubic")[1].interpolation == "bicubic"  # Fast-MoCo


def test_settings_of_presets_reach_every_view():
    assert [v.size for v in swav()] == [224] * 2 + [96] * 6
    assert [v.size for v in swav(160, small_size=64, counts=(1, 2))] == [160, 64, 64]
    assert [v.size for v in msbreg(32, num_views=4)] == [32] * 4
    assert len(moco_v2(32, num_views=6)) == 6
    assert simclr(strength=0.5)[0].jitter == pytest.approx((0.4, 0.4, 0.4, 0.1))
    assert moco_v3(min_scale=0.08)[0].scale == (0.08, 1.0)
    assert all(v.blur == 0 for v in without_blur(byol(32)))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: simclr(strength=3.0),
        lambda: msbreg(num_views=0),
        lambda: moco_v2(num_views=0),
        lambda: swav(counts=(2, 0)),
    ],
)
def test_presets_refuse_what_they_cannot_make(wrong):
    with pytest.raises(UserError):
        wrong()
