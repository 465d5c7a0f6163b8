"""The fused kernels on a CPU, by Triton's interpreter, against the reference path.

Run with TRITON_INTERPRET=1, which must be set before Triton is imported:
`python -m tests.views.interpreted CASE...` prints what was found for each case as JSON. The case
"philox" is the kernel that draws, "lars" and "moving_average" are those of lists of tensors:
starting a second process would take longer than the case.
"""

import json
import sys
from dataclasses import replace
from unittest import mock

import torch
from triton.runtime import interpreter

from selfsight.views import PRESETS, View, for_channels, moco_v2, moco_v3, swav
from selfsight.views.apply import apply_views_with_keys
from selfsight.views.sampling import sample_view_params, view_keys
from selfsight.views.triton import apply, sampling
from selfsight.views.triton.sampling import BRIGHTNESS, FIELDS, NOT_APPLIED, RANK
from tests.triton_kernels import interpreted_lists
from tests.triton_kernels.interpreted_philox import interpreted as draws
from tests.views.ragged import ragged, worst

PLAIN = View(size=24, flip=0.0, jitter_p=0.0, gray=0.0, blur=0.0)
ALWAYS = View(size=40, jitter_p=1.0, gray=0.5, blur=1.0, solarize=1.0, solarize_threshold=0.3)
CASES = {
    **{name: (preset(20), 3) for name, preset in PRESETS.items()},
    "swav": (swav(20, counts=(1, 1)), 3),
    "small": (moco_v3(12)[1:], 3),
    "several_parts": ((ALWAYS,), 3),
    "plain": ((PLAIN, replace(PLAIN, interpolation="bicubic", flip=1.0)), 3),
    "center": ((replace(PLAIN, crop="center"),), 3),
    "one_step_of_jitter": ((replace(PLAIN, jitter=(0.0, 0.9, 0.0, 0.0), jitter_p=1.0),), 3),
    "one_channel": (tuple(for_channels(v, 1) for v in moco_v3(24)), 1),
    "four_channels": (tuple(for_channels(v, 4) for v in moco_v2(16)[:1]), 4),
    "one_pixel": ((replace(ALWAYS, size=1, scale=(0.01, 0.02)),), 3),
}


# The interpreter takes a second to draw a view: of these the params are checked, others are given.
DRAWN = ("small", "center", "moco_v1", "swav", "four_channels")


def case(name, dtype=torch.float32):
    """The largest error of the pixels, and whether the kernel samples the reference parameters."""
    views, channels = CASES[name]
    images, index = ragged(channels=channels), torch.tensor([3, 2**33 + 5, 2**31])
    keys, epoch = view_keys(5, len(views)), 6
    expected = torch.stack(
        [
            fields(
                sample_view_params(
                    view, images.sizes, index, key=key, epoch=epoch, channels=channels
                )
            )
            for view, key in zip(views, keys, strict=True)
        ]
    )
    sampled = expected
    if name in DRAWN:
        sampled = apply._sample_params(views, keys, images, index, epoch)
        used = sampled[..., BRIGHTNESS.value + RANK.value :] < NOT_APPLIED.value
        factors = sampled[..., BRIGHTNESS.value : BRIGHTNESS.value + RANK.value]
        factors[~used] = expected[..., BRIGHTNESS.value : BRIGHTNESS.value + RANK.value][~used]
    with mock.patch.object(apply, "_sample_params", return_value=sampled):
        ours = apply.apply_fused_views(views, keys, images, index, epoch, dtype)
    theirs = apply_views_with_keys(views, keys, images.padded(), images.sizes, index, epoch)
    return {
        "error": worst(ours, theirs),
        "same_params": torch.equal(sampled, expected),
        "channels_last": all(x.is_contiguous(memory_format=torch.channels_last) for x in ours),
    }


def fields(params):
    """Parameters as the kernels have them; a step that changes nothing has no place."""
    rows = params.crop_box.new_zeros(len(params.crop_box), FIELDS.value, dtype=torch.float64)
    rows[:, :4] = params.crop_box
    for field, values in (
        (sampling.FLIP, params.flip),
        (sampling.GRAY, params.gray),
        (sampling.SIGMA, params.blur_sigma),
        (sampling.SOLARIZE, params.solarize),
    ):
        rows[:, field.value] = values.double()
    factors, places = rows[:, BRIGHTNESS.value :].split(RANK.value, dim=1)
    factors.copy_(params.jitter_factors)
    places.fill_(NOT_APPLIED.value)
    for slot, step in enumerate(params.jitter_order.unbind(1)):
        places.scatter_(1, step[:, None], float(slot))
    unchanged = (params.jitter_factors == torch.tensor([1.0, 1.0, 1.0, 0.0])).all(dim=1)
    places[unchanged] = NOT_APPLIED.value
    return rows


def let_numpy_index():
    """Loop bounds are arrays of one number, which numpy 2.4 no longer takes for an integer."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


if __name__ == "__main__":
    torch.set_num_threads(1)
    let_numpy_index()
    others = {
        "philox": draws,
        "lars": interpreted_lists.lars_steps,
        "moving_average": interpreted_lists.moving_averages,
    }
    found = {name: others[name]() if name in others else case(name) for name in sys.argv[1:]}
    print(json.dumps(found))
