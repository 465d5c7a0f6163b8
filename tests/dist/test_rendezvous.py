"""What a process reads from the variables of torchrun, and how it names what is wrong."""

import threading

import pytest

from selfsight.dist import rendezvous
from selfsight.errors import UserError

GOOD = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_variables_that_cannot_be_meant_are_named(monkeypatch):
    cases = [
        ("RANK", None, "RANK is not set"),
        ("RANK", "2", 'RANK is "2", but .* from 0 to 1'),
        ("WORLD_SIZE", "two", 'WORLD_SIZE is "two"'),
        ("WORLD_SIZE", "0", 'WORLD_SIZE is "0"'),
        ("MASTER_ADDR", None, "MASTER_ADDR is not set"),
        ("MASTER_PORT", "99999", 'MASTER_PORT is "99999"'),
    ]
    for name, value, match in cases:
        for variable, good in GOOD.items():
            monkeypatch.setenv(variable, good)
        assert rendezvous.find_place() == rendezvous.Place(1, 2, "127.0.0.1", 29500)
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
        with pytest.raises(UserError, match=match):
            rendezvous.find_place()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert rendezvous.find_place() is None


def test_the_timeout_is_a_setting(monkeypatch):
    assert rendezvous.timeout() == rendezvous.TIMEOUT
    monkeypatch.setenv(rendezvous.VARIABLE, "7.5")
    assert rendezvous.timeout() == 7.5
    for wrong in ("soon", "-1", "0", "nan", "inf"):
        monkeypatch.setenv(rendezvous.VARIABLE, wrong)
        with pytest.raises(UserError, match=rendezvous.VARIABLE):
            rendezvous.timeout()


def test_a_call_that_never_ends_is_given_up():
    never = threading.Event()
    assert rendezvous.call_within(0.05, never.wait) is None
    assert rendezvous.call_within(1.0, lambda: 3) == 3

    def lose():
        raise RuntimeError("the store is gone")

    assert rendezvous.call_within(1.0, lose) is None
