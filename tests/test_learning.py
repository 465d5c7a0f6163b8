"""Runs that must learn, and runs that must be called collapsed."""

import pytest
import torch

from sightline import api
from sightline.methods import METHODS

EXTRA = {
    "fast_moco": ["--optim.lr", "0.002"],
    "instdisc": ["--method.loss", "softmax"],
    "swav": ["--method.num-small", "0", "--method.freeze-steps", "10"],
}


def learnt(out, *settings, method=None, recipe=None, epochs, data="shapes"):
    """kNN accuracy of a short run and of its untrained network, and the verdict."""
    torch.set_num_threads(2)
    run = api.pretrain(
        data, method=method, recipe=recipe, epochs=epochs, device="cpu", out=out, settings=settings
    )
    knn = run.result("knn")
    return knn["accuracy"], knn["untrained_accuracy"], run.result("verdict")


@pytest.mark.slow
def test_the_demo_recipe_learns_shapes(tmp_path):
    trained, untrained, verdict = learnt(tmp_path / "run", recipe="simclr.shapes", epochs=16)
    assert trained > untrained + 0.15
    assert verdict["verdict"] == "learning"


@pytest.mark.slow
def test_byol_without_its_predictor_is_called_collapsed(tmp_path):
    *_, verdict = learnt(
        tmp_path / "run", "--method.no-predictor", method="byol", epochs=12, data="digits"
    )
    assert verdict["verdict"] == "collapsed"
    assert "predictor" in verdict["sentence"]


@pytest.mark.slow
def test_a_queue_far_older_than_the_encoder_is_named(tmp_path):
    """Keys of nine epochs under a teacher that forgets within a step."""
    settings = ["--method.queue-size", "12800", "--method.momentum", "0.0"]
    *_, verdict = learnt(tmp_path / "run", *settings, method="moco", epochs=12, data="digits")
    assert verdict["verdict"] != "learning" or "queue" in verdict["sentence"]
    assert "queue" in verdict["sentence"]


@pytest.mark.learning
@pytest.mark.parametrize("name", sorted(METHODS))
def test_each_method_learns_shapes_in_about_a_minute(name, tmp_path):
    """Ten points of kNN above the untrained network; `make learn` runs these."""
    trained, untrained, _ = learnt(tmp_path / "run", *EXTRA.get(name, []), method=name, epochs=12)
    assert trained > untrained + 0.10
