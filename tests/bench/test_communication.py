"""What a step exchanges is counted without sending it."""

from dataclasses import replace

import torch
from rich.console import Console

from selfsight.bench import communication
from selfsight.bench.communication import count_exchanges
from selfsight.nn.batch_norm import BatchNorm
from selfsight.train import trial_steps
from tests.bench.test_step_growth import tiny


def norm_passes(recipe, monkeypatch):
    """Calls of batch norm in one step, forward and backward, seen by the layers themselves."""
    passes, build = [], trial_steps.build_method

    def watched(*args):
        method = build(*args)
        for norm in method.modules():
            if isinstance(norm, BatchNorm):
                norm.register_forward_hook(
                    lambda *_: passes.append(1 + torch.is_grad_enabled()) and None
                )
        return method

    monkeypatch.setattr(trial_steps, "build_method", watched)
    counted = count_exchanges(recipe, 8)
    return sum(passes) // 3, counted  # of three steps


def test_synchronized_batch_norm_takes_one_exchange_per_layer_and_pass(monkeypatch):
    expected, counted = norm_passes(tiny("mocov3.cifar10_r18_100ep"), monkeypatch)
    assert counted.sums == expected + 1  # and one of gradients
    assert (counted.processes, counted.gathers) == (8, 2)  # keys of two views
    assert counted.gather_bytes == 2 * 4 * (8 * 4) * 8  # float32, 32 images of dim 8


def test_grouped_batch_norm_takes_one_exchange_per_step(monkeypatch):
    recipe = tiny("moco.cifar10_r18_200ep")
    recipe = replace(recipe, method=replace(recipe.method, bn="shuffle"))
    layers, counted = norm_passes(recipe, monkeypatch)
    assert layers > 10
    assert counted.sums == 2  # gradients, and all running statistics


def test_a_batch_that_the_method_rejects_is_not_counted(monkeypatch, capsys):
    monkeypatch.setattr(communication, "NUM_PROCESSES", (2, 10**6))
    recipe = tiny("nnclr.cifar10_r18_200ep")
    assert [one.processes for one in communication.measure_exchanges(recipe, Console())] == [2]
    assert "1000000 processes: not counted." in capsys.readouterr().out
