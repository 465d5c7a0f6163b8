"""Images of all sizes shrink as torch and Pillow shrink them one by one."""

import numpy as np
import pytest
import torch
from PIL import Image

from selfsight.data.decoders.resize_to_store import resize_each
from tests.data.decoders.resize_interpreted import apart, images
from tests.views.test_triton import elsewhere


@pytest.mark.slow
def test_the_kernel_equals_torch_up_to_rounding():
    found = elsewhere("tests.data.decoders.resize_interpreted", TRITON_INTERPRET="1")
    assert list(found) == ["1", "3"] and max(found.values()) <= 1


@pytest.mark.slow
def test_the_kernel_compiles_for_sm_90_without_spilling_and_reads_along_rows(tmp_path):
    found = elsewhere("tests.data.decoders.resize_compiled", TRITON_CACHE_DIR=str(tmp_path))
    assert [f["kernel"] for f in found] == ["resize_kernel"] * 2
    assert [f for f in found if f["spilled"] or not f["along_rows"]] == []


def test_each_image_is_resized_to_its_size_as_pillow_does():
    many, sizes = images(3)
    many = [x // 2 + 64 for x in many]  # Pillow cuts off what overshoots after each of two passes
    ours = resize_each(many, sizes)
    assert [tuple(x.shape) for x in ours] == [(3, *size) for size in sizes]
    theirs = [
        Image.fromarray(x.permute(1, 2, 0).numpy()).resize(size[::-1], Image.Resampling.BICUBIC)
        for x, size in zip(many, sizes, strict=True)
    ]
    theirs = [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in theirs]
    assert apart(ours, theirs) <= 1  # and rounds after each
    assert resize_each([], []) == []


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [1, 3])
def test_resizing_on_the_gpu_equals_the_cpu_up_to_rounding(channels):
    ours = resize_each(*images(channels, "cuda"))
    assert all(x.is_cuda and x.dtype == torch.uint8 for x in ours)
    assert apart(ours, resize_each(*images(channels))) <= 1
