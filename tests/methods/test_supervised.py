"""The supervised baseline: cross-entropy, labels, and what happens without them."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from selfsight.catalog import build_recipe
from selfsight.errors import UserError
from selfsight.methods import BASELINES, METHODS
from selfsight.recipe import Data, from_dict, method_config, to_dict
from selfsight.runs.open_run_images import open_recipe_images
from tests.methods.small import NUM_CLASSES, make, moment, views


def test_the_loss_is_cross_entropy_in_loops():
    method = make("supervised")
    x, at = views(method), moment()
    scores = method.student(x[0])[1].detach().double()
    total = 0.0
    for row, label in zip(scores, at.labels, strict=True):
        total -= math.log(math.exp(row[label]) / sum(math.exp(s) for s in row))
    assert method(x, at).loss.item() == pytest.approx(total / len(scores), rel=1e-5)
    assert scores.shape[1] == NUM_CLASSES


def test_label_smoothing_reaches_the_loss():
    method = make("supervised", label_smoothing=0.1)
    scores = method.student(views(method)[0])[1]
    expected = F.cross_entropy(scores, moment().labels, label_smoothing=0.1)
    torch.testing.assert_close(method(views(method), moment()).loss, expected)


def test_it_is_known_by_name_and_listed_apart():
    assert "supervised" not in METHODS
    assert method_config("supervised") is BASELINES["supervised"]
    made = build_recipe("supervised.cifar10_r18_100ep")
    assert from_dict(to_dict(made)) == made


def test_data_without_labels_is_refused_before_it_is_decoded(tmp_path):
    (tmp_path / "a.png").write_bytes(b"not an image, and never opened")
    made = build_recipe("supervised.cifar10_r18_100ep")
    made = replace(made, data=Data(path=str(tmp_path)))
    with pytest.raises(UserError, match=r"supervised needs labels, and .* has none"):
        open_recipe_images(made, torch.device("cpu"))
