"""Two processes of N images equal one process of 2N: for every method, step after step."""

import pytest

from selfsight.conformance.processes_and_resume_checks import compare_traces, train
from selfsight.methods import BASELINES, METHODS
from tests.methods.small import small

CASES = [(name, {}) for name in sorted(METHODS | BASELINES)] + [
    ("instdisc", {"loss": "softmax", "proximal_lambda": 3.0}),
    ("jcl", {"bn": "split", "bn_group": 2}),
    ("jcl", {"bn": "shuffle", "bn_group": 8, "loss": "multi_key"}),
    ("lejepa", {"num_large": 4, "num_small": 0}),
    ("moco", {"bn": "sync"}),
    ("moco", {"queue_size": 3, "alpha": 64.0}),
    ("moco", {"queue_size": 24, "symmetric": True}),
    ("moco", {"bn": "split", "bn_group": 2}),
    ("moco", {"bn": "shuffle", "bn_group": 8}),
    ("simclr", {"num_negatives": 5, "alpha": 64.0}),
    ("simclr", {"num_negatives": 5, "negatives": "cross"}),
    ("simo", {"shared_negatives": False, "symmetric": True}),
    ("simo", {"bn": "shuffle", "bn_group": 4}),
    ("mocov3", {"head": "vit", "predictor": False, "momentum_end": 0.99}),
    ("mocov3", {"norm": "ws"}),
    ("msbreg", {"singular": "a", "regularized": "projection", "norm": "ln"}),
    ("msbreg", {"singular": "c", "centroid": "both", "uniformity_weight": 0.5}),
]


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_two_processes_equal_one(two_processes, name, settings):
    subject = small(name, **settings)
    one = train(subject)
    for several in two_processes(train, subject):
        compare_traces(one, several)
