"""The transform inside a graph gives the pixels of the transform itself, to the bit."""

import numpy as np
import pytest
import torch
from torch import nn

from selfsight.data.eval_transform import EvalTransform
from selfsight.exporters.onnx_transform import GraphTransform


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("keep_aspect", [True, False])
def test_pixels_are_equal_to_the_bit(interpolation, keep_aspect):
    rng = np.random.default_rng(0)
    sizes = [(3, 700), (900, 2), (32, 32), (36, 36), *rng.integers(8, 300, (3, 2))]
    for size, resize in ((32, 36), (28, 28), (48, 70)):
        transform = EvalTransform(
            size=size, resize=resize, interpolation=interpolation, keep_aspect=keep_aspect
        )
        graph = GraphTransform(nn.Identity(), transform)
        for height, width in sizes:
            image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
            crop = graph.crop(torch.from_numpy(image)[None])[0].permute(1, 2, 0)
            assert np.array_equal(crop.numpy(), transform.crop(image)), (size, height, width)
