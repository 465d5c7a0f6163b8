"""Views by domain: what the images of a field do not change under."""

import numpy as np
import pytest
import torch

from selfsight.data.pixel_statistics import PixelKind
from selfsight.views import View, apply_views_reference, swav
from selfsight.views.domains import DOMAINS, describe_kind, for_domain, for_kind

SIX = PixelKind(6, "float32", False, (0.0,) * 6, (1.0,) * 6, (0.5,) * 6, (0.2,) * 6, False)


def test_the_eight_orientations_of_a_cell_are_equally_likely():
    x = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    x[0, 0, 0, 1] = 255  # in another place for each orientation
    view = for_domain(View(size=8, jitter_p=0.0, blur=0.0, gray=0.0), "microscopy")
    whole = View(**vars(view) | {"crop": "center", "mean": (0.0,), "std": (1.0,)})
    n = 1600
    (out,) = apply_views_reference(
        [whole],
        x.expand(n, -1, -1, -1),
        torch.tensor([[8, 8]] * n),
        torch.arange(n),
        seed=0,
        epoch=0,
    )
    _, counts = np.unique(out.flatten(1).argmax(1), return_counts=True)
    assert len(counts) == 8
    assert ((counts - n / 8) ** 2 / (n / 8)).sum() < 24.3  # chi-square, 7 degrees, p = 0.001


@pytest.mark.parametrize("domain", ["auto", *DOMAINS])
def test_views_of_other_channels_change_no_color_and_have_the_statistics_of_the_data(domain):
    view = for_kind(View(size=8), SIX, domain)
    x = torch.rand(4, 6, 12, 12)
    (out,) = apply_views_reference(
        [view], x, torch.tensor([[12, 12]] * 4), torch.arange(4), seed=0, epoch=0
    )
    assert out.shape == (4, 6, 8, 8)
    assert (view.jitter[2:], view.gray, view.mean) == ((0.0, 0.0), 0.0, SIX.mean)


def test_auto_turns_images_only_if_no_side_is_up_and_says_so():
    upright = SIX._replace(has_up=True)
    assert for_kind(View(), SIX, "auto").rotate > 0
    assert for_kind(View(), upright, "auto").rotate == 0
    assert "since they have no orientation" in describe_kind(SIX, "auto")
    assert "since they have an orientation" in describe_kind(upright, "auto")
    assert describe_kind(None, "auto") == ""


def test_documents_are_never_mirrored_and_small_crops_stay_small():
    views = [for_domain(v, "documents") for v in swav(64)]
    assert {v.flip for v in views} == {0.0}
    assert views[-1].scale == swav(64)[-1].scale
