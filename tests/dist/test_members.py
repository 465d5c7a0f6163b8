"""What a process reads from the variables of torchrun, and how it names what is wrong."""

import threading

import pytest

from selfsight.dist import members
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
        assert members.find_place() == members.Place(1, 2, "127.0.0.1", 29500)
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
        with pytest.raises(UserError, match=match):
            members.find_place()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert members.find_place() is None


def test_the_timeout_is_a_setting(monkeypatch):
    assert members.timeout() == members.TIMEOUT
    monkeypatch.setenv(members.VARIABLE, "7.5")
    assert members.timeout() == 7.5
    for wrong in ("soon", "-1", "0", "nan", "inf"):
        monkeypatch.setenv(members.VARIABLE, wrong)
        with pytest.raises(UserError, match=members.VARIABLE):
            members.timeout()


def test_a_call_that_never_ends_is_given_up():
    never = threading.Event()
    assert members.call_within(0.05, never.wait) is None
    assert members.call_within(1.0, lambda: 3) == 3

    def lose():
        raise RuntimeError("the store is gone")

    assert members.call_within(1.0, lose) is None
