"""Processes that stop, refuse, are missing or differ: the others end with a sentence."""

import os
import re
import signal
import socket

import pytest

from selfsight.dist import heartbeat, rendezvous
from tests.dist.commands import commands, free_port, wait_until
from tests.folders import images

pytestmark = pytest.mark.slow
TRAINING = ("--device", "cpu", "--batch-size", "8", "--method", "simclr", "--log-every", "1")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return images(tmp_path_factory.mktemp("data") / "photos", count=36)


@pytest.fixture
def words(photos, tmp_path):
    return ["pretrain", photos, *TRAINING, "--epochs", 9, "--out", tmp_path / "run"]


def sentence(command):
    """The last line, which is all that a command says of an error."""
    return command.said.strip().splitlines()[-1]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
def test_a_process_that_is_killed_or_stopped_ends_the_others(rank, name, tmp_path):
    # The first process holds the store, so without it nobody can be asked.
    seconds = 3 if name == "SIGSTOP" else 600
    with commands(
        tmp_path, ["exchange"], ["exchange"], ["exchange"], SELFSIGHT_DIST_TIMEOUT=seconds
    ) as started:
        wait_until(lambda: all("exchanged" in command.said for command in started))
        os.kill(started[rank].pid, getattr(signal, name))
        for other in (command for command in started if command is not started[rank]):
            assert other.wait(3 + heartbeat.GRACE + rendezvous.LINGER + 10) == 1
            assert re.search(
                rf"selfsight: Process {rank} of 3 \(pid {started[rank].pid} on .*\) has "
                + ("not answered for 3 s: it was stopped" if name == "SIGSTOP" else "ended"),
                sentence(other),
            )


def test_a_process_without_images_ends_the_others_with_its_reason(photos, words, tmp_path):
    nowhere = ["pretrain", tmp_path / "nowhere", *words[2:]]
    for pair in ([words, nowhere], [nowhere, words]):
        with commands(tmp_path, *pair) as started:
            wrong, right = started if pair[0] is nowhere else reversed(started)
            assert (wrong.wait(), right.wait()) == (2, 1)
        assert "There is no file or folder" in sentence(wrong)
        assert re.match(
            r"selfsight: Process . of 2 .* has ended: There is no file", sentence(right)
        )


def test_processes_that_were_started_differently_are_refused_by_name(photos, words, tmp_path):
    others = images(tmp_path / "others", count=36, seed=1)
    run = ["--out", tmp_path / "run"]
    cases = {
        "optim.lr is 0.01 in process 0 and 0.5 in process 1": [*words, "--optim.lr", "0.5"],
        "epochs is 9 in process 0 of 2": [*words, "--epochs", "3"],
        "process 1 has other images than process 0": ["pretrain", others, *words[2:]],
        "command is pretrain in": ["evaluate", "--backbone", "torchvision:resnet18", *run],
    }
    for reason, other in cases.items():
        with commands(tmp_path, words, other) as started:
            assert [command.wait() for command in started] == [2, 2]
        assert all(reason in sentence(command) for command in started)
        assert not (tmp_path / "run").exists()


def test_a_missing_process_is_waited_for_as_long_as_the_setting_says(tmp_path):
    limit = {"world_size": 2, "SELFSIGHT_DIST_TIMEOUT": 1}
    with commands(tmp_path, ["exchange"], **limit) as (alone,):
        assert alone.wait() == 1
    assert "no process with RANK 1 has joined" in sentence(alone)
    with commands(tmp_path, None, ["exchange"], **limit) as (alone,):
        assert alone.wait() == 1
    assert "could not reach the process with RANK 0" in sentence(alone)


def test_a_port_in_use_and_a_rank_given_twice_are_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with commands(
            tmp_path, ["exchange"], ["exchange"], port=port, SELFSIGHT_DIST_TIMEOUT=1
        ) as (first, second):
            assert (first.wait(), second.wait()) == (2, 1)
    assert f"127.0.0.1:{port} (MASTER_PORT) is in use" in sentence(first)
    assert "could not reach the process with RANK 0" in sentence(second)
    port = free_port()
    with commands(tmp_path, ["exchange"], ["exchange"], port=port) as started:
        wait_until(lambda: all("exchanged" in command.said for command in started))
        other = tmp_path / "other"
        other.mkdir()
        with commands(other, None, ["exchange"], world_size=2, port=port) as (twice,):
            assert twice.wait() == 2
        assert f"Two processes have RANK 1 at 127.0.0.1:{port}" in sentence(twice)
