"""A thread prepares a GPU while images are opened; it delays nothing else and hides no error."""

import gc
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch

from selfsight.catalog import build_recipe
from selfsight.ragged_batch import Ragged
from selfsight.stopwatch import Stopwatch
from selfsight.train.prepare_kernels import (
    compute_black_views,
    import_quickly,
    prepare_kernels,
    run_beside,
)
from selfsight.train.step import DTYPES, compute_views

CPU = torch.device("cpu")


def test_functions_run_in_order_in_one_thread_beside_the_caller():
    ran, begun = [], threading.Event()
    with run_beside(Stopwatch()) as start:
        start(lambda: begun.wait(5))  # which happens only if the caller goes on meanwhile
        for name in ("first", "second"):
            start(lambda name=name: ran.append((name, threading.current_thread().name)))
        assert not ran
        begun.set()
    assert [name for name, _ in ran] == ["first", "second"]
    assert len({thread for _, thread in ran} | {threading.current_thread().name}) == 2


def test_the_clock_counts_the_wait_and_the_work_apart():
    clock = Stopwatch()
    with run_beside(clock) as start:
        start(lambda: time.sleep(0.3))
        time.sleep(0.1)
    record = clock.record()
    assert record["data"] == pytest.approx(0.1, abs=0.05)
    assert record["kernels"] == pytest.approx(0.2, abs=0.05)
    assert record["meanwhile"] == pytest.approx(0.3, abs=0.05)
    assert record["total"] < 0.35  # the thread's seconds are not counted twice


def test_an_error_of_the_thread_is_left_to_training():
    later = []
    with run_beside(Stopwatch()) as start:
        start(lambda: 1 / 0)
        start(lambda: later.append(1))
    assert later


def test_an_error_while_images_are_opened_is_raised_at_once():
    raised, later = threading.Event(), []

    def open_images():
        with run_beside(Stopwatch()) as start:
            start(lambda: raised.wait(5))
            start(lambda: later.append(1))
            raise OSError("no such folder")

    began = time.monotonic()
    with pytest.raises(OSError, match="no such folder"):
        open_images()
    assert time.monotonic() - began < 2
    raised.set()
    assert not later


@pytest.mark.parametrize("name", ["moco.cifar10_r18_200ep", "swav.imagenet_r50_800ep"])
@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_black_views_have_the_types_and_sizes_of_a_batch(name, precision):
    recipe = replace(build_recipe(name), precision=precision)
    views = compute_black_views(recipe, CPU)
    assert [x.shape for x in views] == [(2, 3, v.size, v.size) for v in recipe.views]
    assert {x.dtype for x in views} == {DTYPES[precision]}


def test_nothing_is_prepared_on_a_cpu():
    before, clock = threading.active_count(), Stopwatch()
    with prepare_kernels(build_recipe("simclr.shapes"), CPU, clock):
        assert threading.active_count() == before
    assert clock.record()["kernels"] == clock.record()["meanwhile"] == 0


def test_the_compiler_is_imported_without_garbage_collection(monkeypatch, tmp_path):
    (tmp_path / "a_module_that_looks.py").write_text("import gc\nenabled = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_quickly("a_module_that_looks")
    assert not sys.modules.pop("a_module_that_looks").enabled and gc.isenabled()


@pytest.mark.gpu
def test_training_needs_no_other_kernels():
    from selfsight.views.triton import sampling, spatial  # Triton needs a GPU

    recipe, device = build_recipe("moco.cifar10_r18_200ep"), torch.device("cuda", 0)

    def count_compiled():
        kernels = sampling.sample_params_kernel, spatial.crop_kernel, spatial.color_kernel
        return [len(kernel.device_caches[0][0]) for kernel in kernels]

    with prepare_kernels(recipe, device, Stopwatch()):
        pass
    assert "torch._inductor.compile_fx" in sys.modules
    compiled = count_compiled()
    index = torch.arange(7, device=device)
    sizes = torch.tensor([[33, 47]] * 7, device=device)
    pixels = torch.zeros(7 * 3 * 33 * 47 + 1, dtype=torch.uint8, device=device)[1:]
    images = Ragged(pixels, index * 3 * 33 * 47, sizes, 3, (33, 47))
    compute_views(recipe, images, index, torch.tensor(5, device=device))
    assert min(compiled) >= 1 and count_compiled() == compiled
