"""Invalid settings of a view raise an error that says what to do."""

import json
from dataclasses import asdict

import pytest

from selfsight.errors import UserError
from selfsight.views import PRESETS, View, for_channels


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"size": 0}, "size is 0"),
        ({"scale": (0.5, 0.2)}, "smaller one first"),
        ({"scale": (0.2, 1.5)}, "at most 1"),
        ({"scale": (0.0, 1.0)}, "above 0"),
        ({"ratio": (1.5, 0.5)}, "ratio is"),
        ({"blur_sigma": (0.0, 2.0)}, "blur_sigma is"),
        ({"flip": 1.5}, "views.flip is 1.5; it must be .* at most 1"),
        ({"jitter_p": -0.1}, "jitter_p is -0.1"),
        ({"gray": float("nan")}, "gray is nan"),
        ({"jitter": (0.4, -0.4, 0.4, 0.1)}, "jitter is .* each 0 or more"),
        ({"jitter": (0.4, 0.4, 0.4, 0.6)}, "hue, is at most 0.5"),
        ({"blur_kernel": 0.0}, "blur_kernel is 0.0; it must be above 0"),
        ({"noise_sigma": -1.0}, "noise_sigma is -1"),
        ({"solarize_threshold": 128.0}, "solarize_threshold is 128"),
        ({"mean": (0.5,), "std": (0.2, 0.2)}, "as many of each"),
        ({"std": (0.2, 0.0, 0.2)}, "std is .* above 0"),
        ({"order": ("flip", "jitter", "grays", "blur")}, 'Did you mean "gray"'),
        ({"order": ("flip", "flip", "jitter", "gray", "blur")}, "once"),
        ({"second_crop": 2.0}, "second_crop is 2"),
        ({"order": ("flip", "jitter", "gray")}, 'Add "blur" to order'),
    ],
)
def test_an_invalid_view_raises_an_error_that_names_the_setting(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        View(**settings)


def test_an_unknown_interpolation_offers_the_nearest():
    view = View()
    object.__setattr__(view, "interpolation", "bicubi")  # the type checker of the tests allows this
    with pytest.raises(UserError, match='Did you mean "bicubic"'):
        view.__post_init__()


def test_a_view_comes_back_from_json():
    for preset in PRESETS.values():
        for view in preset():
            read = json.loads(json.dumps(asdict(view)))
            tuples = {k: tuple(v) if isinstance(v, list) else v for k, v in read.items()}
            assert View(**tuples) == view


def test_for_channels_keeps_a_view_for_three_channels():
    assert for_channels(View(), 3) == View()


def test_for_channels_drops_what_needs_red_green_and_blue():
    view = for_channels(View(), 4)
    assert (view.jitter, view.gray) == ((0.4, 0.4, 0.0, 0.0), 0.0)
    assert view.mean == pytest.approx((0.449,)) and view.std == pytest.approx((0.226,))
    own = View(mean=(0.1, 0.2), std=(0.3, 0.4))
    assert (for_channels(own, 2).mean, for_channels(own, 2).std) == (own.mean, own.std)
