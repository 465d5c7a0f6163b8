"""Parameters that a method freezes do not learn, and then learn like ones that are new."""

import pytest
import torch

from selfsight.train.cuda_graph import StepRunner
from tests.methods.small import SMALL
from tests.train.test_step import CPU, batch, made

FREEZE = {
    "dino": {"freeze_epochs": 1, "free_scale": True},  # an epoch has five steps
    "swav": {"freeze_steps": 5},
}
LAYERS = {
    "dino": ("student.projector.last.weight", "student.projector.scale"),
    "swav": ("prototypes.weight",),
}
OPTIMIZERS = {
    "adamw": {"lr": 0.01},
    "lamb": {"lr": 0.01},
    "lars": {},
    "sgd": {"momentum": 0.9},
}


@pytest.mark.parametrize("name", FREEZE)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_after_the_thaw_the_first_update_is_that_of_a_new_optimizer(name, optimizer, monkeypatch):
    monkeypatch.setitem(SMALL, name, SMALL[name] | FREEZE[name])
    state, runner = made(name, name=optimizer, weight_decay=0.1, **OPTIMIZERS[optimizer])
    layers = [state.method.get_parameter(layer) for layer in LAYERS[name]]
    start = [layer.detach().clone() for layer in layers]
    learned = next(state.method.student.backbone.parameters())
    for step in range(5):
        before = learned.detach().clone()
        runner(batch(state, seed=step))
        assert not torch.equal(learned, before)
        for layer, old in zip(layers, start, strict=True):
            torch.testing.assert_close(layer, old, rtol=1e-6, atol=0)  # SwAV's are rescaled
            for stored in state.optimizer.state[layer].values():
                assert not torch.is_tensor(stored) or not stored.any()
    fresh, _ = made(name, name=optimizer, weight_decay=0.1, **OPTIMIZERS[optimizer])
    fresh.method.load_state_dict(state.method.state_dict())
    fresh.step = state.step
    other = StepRunner(fresh, runner.recipe, steps_per_epoch=5, device=CPU)
    for run in (runner, other):
        run(batch(state, seed=5))
    for layer, key, old in zip(layers, LAYERS[name], start, strict=True):
        torch.testing.assert_close(layer, fresh.method.get_parameter(key))
        assert not torch.allclose(layer, old, rtol=1e-6)
