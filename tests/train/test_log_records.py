"""Numbers derived from a logged loss."""

import math

import pytest

from selfsight.methods import METHODS
from selfsight.train.log_records import information_bound


def test_the_information_bound_is_the_gain_over_guessing():
    assert information_bound(METHODS["moco"](), chance=5.5, loss=3.5) == 2.0


@pytest.mark.parametrize("name", ["barlow_twins", "instdisc", "jcl", "swav"])
def test_a_loss_that_is_not_info_nce_has_no_information_bound(name):
    assert information_bound(METHODS[name](), chance=5.5, loss=3.5) is None


@pytest.mark.parametrize("name", [name for name, config in METHODS.items() if config.info_nce])
def test_guessing_gives_no_information(name):
    config = METHODS[name]()
    chance = config.chance_loss(256)
    assert information_bound(config, chance=chance, loss=chance) == 0


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_the_information_bound_does_not_depend_on_the_scale_of_mocov3s_loss(temperature):
    config = METHODS["mocov3"](temperature=temperature)
    bound = information_bound(config, chance=config.chance_loss(256), loss=0.0)
    assert bound == pytest.approx(math.log(256))
