"""Fused views: the reference path's results, in few launches, without the host waiting."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from selfsight.errors import UserError
from selfsight.views import (
    PRESETS,
    View,
    apply_views,
    apply_views_reference,
    for_channels,
    moco_v1,
    moco_v2,
    moco_v3,
    swav,
    without_blur,
)
from selfsight.views.sampling import view_keys
from tests.views.ragged import ragged, worst

pytest.importorskip("triton")
from selfsight.views.triton import apply
from selfsight.views.triton.can_fuse import can_fuse

ROOT = Path(__file__).parents[2]
# Of views in units of their deviation, some 0.225 of the range of a pixel
TOLERANCE = 2e-5
EVERYTHING = View(
    size=12, solarize=0.3, rotate=0.5, cutout=0.5, sobel=0.3, noise=0.5, second_crop=0.5
)
SPECIAL = [
    "several_parts",
    "plain",
    "center",
    "one_step_of_jitter",
    "one_channel",
    "four_channels",
    "one_pixel",
]
CASES = [*PRESETS, *SPECIAL]


def elsewhere(module, *arguments, **environment):
    """What a module prints from a process of its own, without the type checks of tests."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


def agrees(found):
    return found["same_params"] and found["channels_last"] and found["error"] < TOLERANCE


@pytest.fixture(scope="module")
def interpreted():
    return elsewhere("tests.views.interpreted", *CASES, TRITON_INTERPRET="1")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_fused_views_are_the_reference_paths_for_every_preset(interpreted, name):
    assert agrees(interpreted[name]), interpreted[name]


@pytest.mark.slow
def test_kernels_compile_for_sm_90_without_spilling_and_read_along_rows(tmp_path):
    found = elsewhere("tests.views.compiled", TRITON_CACHE_DIR=str(tmp_path))
    assert {f["kernel"] for f in found} == {
        "sample_params_kernel",
        "crop_kernel",
        "color_kernel",
        "blur_columns_kernel",
    }
    assert [f for f in found if f["spilled"] or not f["along_rows"]] == []


class Recorder:
    """Stands for a kernel and notes its launches."""

    def __init__(self, name, launches):
        self.name, self.launches = name, launches

    def __getitem__(self, grid):
        def launch(*args, **kwargs):
            assert all(x.is_contiguous() for x in args if isinstance(x, torch.Tensor))
            self.launches.append(self.name)

        return launch


class Operations(TorchDispatchMode):
    """Notes the operations of torch that run under it."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def recorded(monkeypatch, views, epoch, images=None):
    """The launches of Triton's kernels, and the operations of torch that are not free."""
    launches = []
    sample = "sample_params_kernel"
    monkeypatch.setattr(apply.sampling, sample, Recorder("sample", launches))
    for name in ("crop", "color", "blur_columns"):
        monkeypatch.setattr(apply.spatial, f"{name}_kernel", Recorder(name, launches))
    images, index, keys = images or ragged(), torch.arange(3), view_keys(0, len(views))
    with Operations() as operations:
        apply.apply_fused_views(views, keys, images, index, epoch, torch.bfloat16)
    free = {"empty", "new_empty", "empty_like", "detach", "permute", "split_with_sizes", "unbind"}
    return launches, [name for name in operations.names if name not in free]


@pytest.mark.parametrize(
    ("views", "passes"),
    [
        (moco_v3(32), ["crop", "color", "blur_columns"]),
        (moco_v2(32, num_views=6), ["crop", "color", "blur_columns"]),
        (moco_v1(32), ["crop", "color"]),
        (without_blur(moco_v2(32)), ["crop", "color"]),
        (swav(32), ["crop", "color", "blur_columns"] * 2),  # two sizes
    ],
)
def test_all_views_of_one_size_take_one_sampling_launch_and_at_most_three_passes(
    monkeypatch, views, passes
):
    launches, others = recorded(monkeypatch, views, epoch=torch.tensor(3))
    assert launches == ["sample", *passes]
    assert others == []


def test_an_epoch_given_as_a_number_costs_one_fill(monkeypatch):
    launches, others = recorded(monkeypatch, moco_v3(32), epoch=3)
    assert len(launches) == 4 and others == ["full"]


def test_sizes_that_share_one_row_of_memory_are_laid_out_for_the_kernels(monkeypatch):
    images = ragged(((8, 6),) * 3)
    images = images._replace(sizes=images.sizes[:1].expand(3, 2))
    launches, others = recorded(monkeypatch, moco_v3(32), torch.tensor(3), images)
    assert len(launches) == 4 and others == ["clone"]


def test_every_preset_can_be_fused():
    views = {name: PRESETS[name]() for name in PRESETS}
    assert [name for name in views if not all(can_fuse(v) for v in views[name])] == []


@pytest.mark.parametrize(
    "view",
    [
        EVERYTHING,
        View(noise=0.1),
        View(order=("blur", "jitter", "gray", "flip")),
        View(solarize=0.1, order=("jitter", "gray", "solarize", "blur", "flip")),
        View(solarize=0.1, order=("jitter", "blur", "solarize", "gray", "flip")),
    ],
)
def test_views_that_the_kernels_do_not_support_are_not_fused(view):
    assert not can_fuse(view)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_cpu_apply_views_is_the_reference(dtype):
    images, index = ragged(), torch.arange(3)
    views = (EVERYTHING, *moco_v2(16))
    ours = apply_views(views, images, index, seed=1, epoch=2, dtype=dtype)
    theirs = apply_views_reference(views, images.padded(), images.sizes, index, seed=1, epoch=2)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == dtype and one.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(one, other.to(dtype))


def test_apply_views_rejects_color_operations_for_images_without_color():
    view = View(size=8, gray=0.2, mean=(0.5,), std=(0.2,))
    with pytest.raises(UserError, match="4 channels"):
        apply_views((view,), ragged(channels=4), torch.arange(3), seed=0, epoch=0)


def many(n=24, side=90, channels=3):
    """Images on the GPU whose shapes all differ."""
    shapes = [(side - 3 * i % 71, 1 + (side + 5 * i) % 83) for i in range(n)]
    return ragged(shapes, channels, device="cuda"), torch.arange(n, device="cuda")


def reference(views, images, index, epoch):
    return apply_views_reference(views, images.padded(), images.sizes, index, seed=1, epoch=epoch)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [33, 96])
@pytest.mark.parametrize("name", PRESETS)
def test_on_a_gpu_every_preset_is_the_reference_paths(name, size):
    images, index = many()
    views = PRESETS[name](size)
    ours = apply_views(views, images, index, seed=1, epoch=2)
    assert worst(ours, reference(views, images, index, 2)) < TOLERANCE


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [1, 2, 4])
def test_on_a_gpu_other_channels_are_the_reference_paths(channels):
    images, index = many(channels=channels)
    views = tuple(for_channels(v, channels) for v in (*moco_v3(40), *moco_v2(40)))
    ours = apply_views(views, images, index, seed=1, epoch=2)
    assert worst(ours, reference(views, images, index, 2)) < TOLERANCE


@pytest.mark.gpu
def test_on_a_gpu_bfloat16_is_the_reference_rounded():
    images, index = many()
    ours = apply_views(moco_v3(64), images, index, seed=1, epoch=2, dtype=torch.bfloat16)
    # A number of up to 4 has 8 bits in bfloat16; float16 between the passes adds some 2e-3
    assert worst(ours, reference(moco_v3(64), images, index, 2)) < 2**-7 + 4e-3


@pytest.mark.gpu
def test_on_a_gpu_fused_and_other_views_are_returned_in_order_and_reproducibly():
    images, index = many()
    views = (moco_v3(32)[0], EVERYTHING, moco_v3(40)[1], moco_v3(32)[1])
    one, two = (apply_views(views, images, index, seed=1, epoch=2) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert [x.shape[2] for x in one] == [32, 12, 40, 32]
    assert worst(one, reference(views, images, index, 2)) < TOLERANCE


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.gpu
def test_on_a_gpu_the_host_does_not_wait_for_fused_views():
    images, index = many()
    torch.cuda.set_sync_debug_mode("error")
    try:
        apply_views(moco_v3(32), images, index, seed=1, epoch=2)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_a_cuda_graph_of_fused_views_follows_its_epoch_and_index():
    images, index = many()
    epoch = torch.tensor(2, device="cuda")
    settings = {"seed": 1, "epoch": epoch, "dtype": torch.float32}
    apply_views(moco_v3(32), images, index, **settings)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = apply_views(moco_v3(32), images, index, **settings)
    epoch.fill_(7)
    index.add_(1000)
    graph.replay()
    assert worst(made, reference(moco_v3(32), images, index, 7)) < TOLERANCE
