"""What grows is set, one thing at a time, and all else stays."""

from dataclasses import replace

import pytest
import torch
from rich.console import Console

from selfsight.bench import costs, multi_process, run, scaling
from selfsight.bench.step_cost import Spent
from selfsight.catalog import build_recipe
from selfsight.errors import UserError
from selfsight.recipe import override
from tests.bench.witness import WitnessConfig

CPU = torch.device("cpu")


@pytest.fixture
def small(monkeypatch):
    """The recipes that were run, in place of running them; the machine has one core."""
    ran = []

    def step(made, count, device, *, seconds):
        ran.append((made, count))
        return Spent(8.0, None)

    monkeypatch.setattr(scaling, "step", step)
    monkeypatch.setattr(scaling, "IMAGES", (50, 70))
    monkeypatch.setattr(scaling, "FEW", 32)
    monkeypatch.setattr(multi_process, "num_workers", lambda: 1)
    return ran


@pytest.fixture
def shared(small, monkeypatch):
    """What several processes were told to run, on a machine of 13 cores and 6 GPUs."""
    told = []

    def together(made, count, device, **settings):
        told.append((made, count, settings))
        return Spent(10.0, None)

    monkeypatch.setattr(multi_process, "together", together)
    monkeypatch.setattr(multi_process, "num_workers", lambda: 13)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 6)
    monkeypatch.setattr(scaling, "settle", lambda recipe, device: None)
    return told


def measured(name, console):
    made = replace(build_recipe(name), batch_size=64)
    return made, costs(made, CPU, seconds=0.01, console=console)


def test_batch_queue_and_images_grow_by_themselves(small, capsys):
    base, found = measured("moco.cifar10_r18_200ep", Console())
    assert [(c.what, c.value) for c in found] == [
        *(("batch", 64 * n) for n in (1, 2, 4, 8)),
        *(("queue", 4096 * n) for n in (1, 2, 4, 8)),
        *(("images", n) for n in (50, 70)),
    ]
    for cost, (made, count) in zip(found, small, strict=True):
        assert cost.images_per_second == 1000 * made.batch_size / 8
        asked = {"batch": made.batch_size, "queue": made.method.queue_size, "images": count}
        assert asked[cost.what] == cost.value
        if cost.what != "batch":
            assert made.batch_size == base.batch_size
        if cost.what != "queue":
            assert made.method == base.method
        assert count >= 2 * made.batch_size or cost.what == "images"
    assert "32,768" in capsys.readouterr().out


def test_views_grow_where_a_method_takes_any_number(small):
    _, found = measured("msbreg.cifar10_r18_100ep", Console(quiet=True))
    views = [cost.value for cost in found if cost.what == "views"]
    assert views == [2, 4, 8, 16]
    assert [len(made.views) for made, _ in small[4:8]] == views
    assert found[0].to_dict()["memory"] is None


def test_the_command_prints_and_returns_it(small, capsys):
    found = run("moco.cifar10_r18_200ep", device="cpu", growth=True)
    assert [row["what"] for row in found["growth"]][-1] == "images"
    assert "queue" in capsys.readouterr().out


def test_a_machine_of_one_core_says_why_no_processes_are_measured(small, capsys):
    _, found = measured("moco.cifar10_r18_200ep", Console())
    assert "processes" not in {cost.what for cost in found}
    assert "a usable core of its own, and this machine has one" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("device", "numbers", "threads"), [("cpu", [1, 2, 4, 8, 13], 1), ("cuda", [1, 2, 4, 6], 2)]
)
def test_processes_grow_to_the_machine_each_with_its_batch_and_threads(
    shared, device, numbers, threads
):
    base = replace(build_recipe("moco.cifar10_r18_200ep"), batch_size=64)
    found = costs(base, torch.device(device), seconds=0.5, console=Console(quiet=True))
    rows = [cost for cost in found if cost.what == "processes"]
    assert [cost.value for cost in rows] == numbers
    for number, cost, (made, count, settings) in zip(numbers, rows, shared, strict=True):
        assert made == replace(base, batch_size=64 * number)
        assert count == 2 * 64 * numbers[-1]
        assert settings == {"processes": number, "each": threads, "seconds": 0.5}
        assert cost.images_per_second == 64 * number * 100  # in steps of 10 ms


def test_processes_stop_where_the_recipe_refuses_their_batch(shared, capsys):
    made = replace(build_recipe("nnclr.cifar10_r18_200ep"), batch_size=64)
    made = replace(made, method=replace(made.method, queue_size=8 * 64))
    found = costs(made, CPU, seconds=0.5, console=Console(width=200))
    assert [cost.value for cost in found if cost.what == "processes"] == [1, 2, 4, 8]
    assert "queue_size is 512 but a batch brings 832 keys" in capsys.readouterr().out


def witnessed(**settings):
    """The smallest network with a method that tells when it is not run as told."""
    made = override(
        build_recipe("moco.cifar10_r18_200ep"), {}, ["--backbone.name", "resnet8_narrow"]
    )
    return replace(made, method=WitnessConfig(**settings), batch_size=16)


@pytest.fixture
def started(monkeypatch):
    """The processes that were started."""
    children, start = [], multi_process._started

    def keep(*args):
        children.append(start(*args))
        return children[-1]

    monkeypatch.setattr(multi_process, "_started", keep)
    return children


def test_processes_that_take_too_long_are_ended(started, monkeypatch):
    monkeypatch.setattr(multi_process, "LIMIT", 0.0)
    with pytest.raises(UserError, match=r"2 processes .* not finished after 0 s and were ended"):
        multi_process.together(witnessed(), 64, CPU, processes=2, each=1, seconds=0.0)
    assert [child.returncode for child in started] == [-9, -9]


def test_two_processes_share_a_batch_and_measure_it(started, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # theirs is another
    spent = multi_process.together(witnessed(), 64, CPU, processes=2, each=1, seconds=0.1)
    assert spent.ms > 0 and spent.memory is None
    assert [child.returncode for child in started] == [0, 0]


def test_a_process_that_fails_says_why_and_ends_the_others(started):
    made = witnessed(unlucky=1)
    with pytest.raises(UserError, match=r'Process 2 of 2 .* it said "RuntimeError: out of luck"'):
        multi_process.together(made, 64, CPU, processes=2, each=1, seconds=0.1)
    assert all(child.returncode for child in started)
