"""The device of a command, and what of a recipe it supports."""

from pathlib import Path

import pytest
import torch

from selfsight import device
from selfsight.catalog import build_recipe
from selfsight.device import adapt_to_device, resolve_device
from selfsight.errors import UserError

CPU = torch.device("cpu")


def test_a_recipe_for_a_gpu_runs_on_the_cpu_and_says_what_changed():
    made, reasons = adapt_to_device(build_recipe("mocov3.imagenet_r50_100ep"), CPU)
    assert (made.precision, made.compile) == ("float32", False)
    assert set(reasons) == {"precision", "compile"}


def test_a_number_of_a_gpu_is_not_ignored():
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES=N selects a GPU"):
        resolve_device("cuda:1")


def test_a_gpu_that_torch_cannot_use_is_a_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UserError, match="no GPU that torch"):
        resolve_device("cuda")
    # A driver that is there but does not work must not mean silent work on the CPU either.
    monkeypatch.setattr(device, "GPU_FILE", Path(__file__))
    for visible in (None, "0"):
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with pytest.raises(UserError, match="--device cpu"):
            resolve_device("auto")


@pytest.mark.parametrize("visible", ["", " ", "-1"])
def test_whoever_hides_the_gpus_gets_the_cpu(visible, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device, "GPU_FILE", Path(__file__))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert resolve_device("auto") == CPU
    assert "CUDA_VISIBLE_DEVICES hides the GPUs" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"CUDA_VISIBLE_DEVICES is .*, which hides all"):
        resolve_device("cuda")


def test_without_a_compiler_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(device.rng, "has_triton", lambda: False)
    made, reasons = adapt_to_device(build_recipe("mocov3.imagenet_r50_100ep"), CPU)
    assert not made.compile and "compile" in reasons["compile"]
