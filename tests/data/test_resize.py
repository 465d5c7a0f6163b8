"""Images of all sizes shrink as torch and Pillow shrink them one by one."""

import numpy as np
import pytest
import torch
from PIL import Image

from selfsight.data.resize import shrunk
from tests.data.interpreted import apart, images
from tests.views.test_triton import elsewhere


@pytest.mark.slow
def test_the_kernel_makes_torchs_pixels_but_for_rounding():
    found = elsewhere("tests.data.interpreted", TRITON_INTERPRET="1")
    assert list(found) == ["1", "3"] and max(found.values()) <= 1


@pytest.mark.slow
def test_the_kernel_compiles_for_sm_90_without_spilling_and_reads_along_rows(tmp_path):
    found = elsewhere("tests.data.compiled", TRITON_CACHE_DIR=str(tmp_path))
    assert found == [{"kernel": "shrink", "spilled": 0, "along_rows": True}] * 2


def test_each_image_gets_its_own_size():
    many, sizes = images(3)
    many = [x // 2 + 64 for x in many]  # Pillow cuts off what overshoots after each of two passes
    ours = shrunk(many, sizes)
    assert [tuple(x.shape) for x in ours] == [(3, *size) for size in sizes]
    theirs = [
        Image.fromarray(x.permute(1, 2, 0).numpy()).resize(size[::-1], Image.Resampling.BICUBIC)
        for x, size in zip(many, sizes, strict=True)
    ]
    theirs = [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in theirs]
    assert apart(ours, theirs) <= 1  # and rounds after each
    assert shrunk([], []) == []


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [1, 3])
def test_on_the_gpu_they_are_those_of_the_cpu(channels):
    ours = shrunk(*images(channels, "cuda"))
    assert all(x.is_cuda and x.dtype == torch.uint8 for x in ours)
    assert apart(ours, shrunk(*images(channels))) <= 1
