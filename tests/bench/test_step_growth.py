"""One setting is varied at a time, and the cost of real steps is reported."""

import json
import os
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from selfsight.bench import communication, process_scaling, run, step_growth
from selfsight.bench.step_cost import StepCost, measure_step
from selfsight.bench.step_growth import measure_scaling
from selfsight.catalog import build_recipe
from selfsight.errors import UserError
from selfsight.recipe import override, to_dict
from tests.bench.checked_method import CheckedConfig

CPU = torch.device("cpu")


@pytest.fixture
def small(monkeypatch):
    """Few images and factors, on a machine of one core; records what is measured."""
    measured = []

    def record(recipe, num_images, device, *, seconds):
        cost = measure_step(recipe, num_images, device, seconds=seconds)
        measured.append((recipe, num_images, cost))
        return cost

    monkeypatch.setattr(step_growth, "measure_step", record)
    monkeypatch.setattr(step_growth, "FACTORS", (2,))
    monkeypatch.setattr(step_growth, "NUM_IMAGES", (20,))
    monkeypatch.setattr(communication, "NUM_PROCESSES", (2,))
    monkeypatch.setattr(step_growth, "DEFAULT_NUM_IMAGES", 16)
    monkeypatch.setattr(process_scaling, "available_cpus", lambda: 1)
    return measured


@pytest.fixture
def many_devices(monkeypatch):
    """Records what several processes would measure, on a machine of 13 cores and 6 GPUs."""
    measured = []

    def record(recipe, num_images, device, **settings):
        measured.append((recipe, num_images, settings))
        return StepCost(10.0, None)

    monkeypatch.setattr(process_scaling, "measure_processes", record)
    monkeypatch.setattr(process_scaling, "available_cpus", lambda: 13)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 6)
    monkeypatch.setattr(step_growth, "_cases", lambda recipe: ())
    monkeypatch.setattr(step_growth, "DEFAULT_NUM_IMAGES", 32)
    monkeypatch.setattr(step_growth, "configure_torch", lambda recipe, device: None)
    return measured


def tiny(name, batch_size=4):
    """A recipe with the smallest backbone, heads and views."""
    small = override(build_recipe(name), {}, ["--backbone.name", "resnet8_narrow"])
    narrow = {"dim": 8, "hidden_dim": 8, "bn_group": 2}
    method = replace(small.method, **{k: v for k, v in narrow.items() if hasattr(small.method, k)})
    views = tuple(replace(view, size=8) for view in small.views)
    return replace(small, method=method, batch_size=batch_size, views=views)


def test_batch_queue_and_images_are_varied_one_at_a_time_and_measured(small, capsys):
    base = tiny("moco.cifar10_r18_200ep")
    points = measure_scaling(base, CPU, seconds=0.0, console=Console())
    assert [(p.varied, p.value) for p in points] == [
        ("batch", 2 * 4),
        ("queue", 2 * 4096),
        ("images", 20),
    ]
    for point, (changed, num_images, cost) in zip(points, small, strict=True):
        assert point.ms == cost.ms > 0
        assert point.images_per_second == pytest.approx(1000 * changed.batch_size / cost.ms)
        values = {
            "batch": changed.batch_size,
            "queue": changed.method.queue_size,
            "images": num_images,
        }
        assert values[point.varied] == point.value
        if point.varied != "batch":
            assert changed.batch_size == base.batch_size
        if point.varied != "queue":
            assert changed.method == base.method
    printed = capsys.readouterr().out
    assert "8,192" in printed
    assert "each process needs its own usable core, and this machine has one" in printed


def test_a_batch_that_the_recipe_rejects_ends_its_series_and_not_the_bench(
    small, monkeypatch, capsys
):
    monkeypatch.setattr(step_growth, "FACTORS", (1, 2, 4))
    base = tiny("moco.cifar10_v2plus_r18_200ep")
    base = replace(base, method=replace(base.method, queue_size=8))  # a batch brings 8 keys
    points = measure_scaling(base, CPU, seconds=0.0, console=Console(width=200))
    assert [p.value for p in points if p.varied == "batch"] == [4]
    assert capsys.readouterr().out.count("batch: stopped here. method.queue_size is 8") == 1
    assert {p.varied for p in points} == {"batch", "queue", "images"}


def test_views_are_varied_where_a_method_takes_any_number(small, monkeypatch):
    monkeypatch.setattr(step_growth, "NUM_IMAGES", ())
    monkeypatch.setattr(step_growth, "FACTORS", (1,))
    points = measure_scaling(
        tiny("msbreg.cifar10_r18_100ep", batch_size=2),
        CPU,
        seconds=0.0,
        console=Console(quiet=True),
    )
    views = [point.value for point in points if point.varied == "views"]
    assert views == [2]
    assert [len(changed.views) for changed, _, _ in small] == [4, 2]  # the recipe has four
    assert points[0].memory is None


def test_the_command_prints_and_returns_the_points(small, monkeypatch, capsys):
    monkeypatch.setattr(step_growth, "FACTORS", (1,))
    settings = ["--backbone.name", "resnet8_narrow", "--method.dim", "8"]
    result = run(
        "simclr.shapes", device="cpu", growth=True, batch_size=4, seconds=0.01, settings=settings
    )
    assert [row["varied"] for row in result["growth"]][-1] == "images"
    assert [row["processes"] for row in result["exchanges"]] == [2]
    assert "images/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("device", "numbers", "threads"), [("cpu", [1, 2, 4, 8, 13], 1), ("cuda", [1, 2, 4, 6], 2)]
)
def test_processes_are_varied_up_to_the_machine_each_with_its_batch_and_threads(
    many_devices, device, numbers, threads
):
    base = replace(build_recipe("moco.cifar10_r18_200ep"), batch_size=64)
    points = measure_scaling(base, torch.device(device), seconds=0.5, console=Console(quiet=True))
    assert [(p.varied, p.value) for p in points] == [("processes", n) for n in numbers]
    for number, point, measured in zip(numbers, points, many_devices, strict=True):
        changed, num_images, settings = measured
        assert changed == replace(base, batch_size=64 * number)
        assert num_images == 2 * 64 * numbers[-1]
        assert settings == {"processes": number, "threads": threads, "seconds": 0.5}
        assert point.images_per_second == 64 * number * 100  # in steps of 10 ms


def test_processes_stop_where_the_recipe_rejects_their_batch(many_devices, capsys):
    made = replace(build_recipe("nnclr.cifar10_r18_200ep"), batch_size=64)
    made = replace(made, method=replace(made.method, queue_size=8 * 64))
    points = measure_scaling(made, CPU, seconds=0.5, console=Console(width=200))
    assert [point.value for point in points] == [1, 2, 4, 8]
    assert "queue_size is 512 but a batch brings 832 keys" in capsys.readouterr().out


def checked():
    """The smallest network with a method that checks how it is run."""
    return replace(tiny("moco.cifar10_r18_200ep"), method=CheckedConfig(), batch_size=16)


@pytest.fixture
def started(monkeypatch):
    """Records the processes that are started."""
    workers, start = [], process_scaling._start_worker

    def record(*args):
        workers.append(start(*args))
        return workers[-1]

    monkeypatch.setattr(process_scaling, "_start_worker", record)
    return workers


def test_processes_that_take_too_long_are_killed(started, monkeypatch):
    monkeypatch.setattr(process_scaling, "TIMEOUT", 0.0)
    with pytest.raises(UserError, match=r"2 processes had not finished after 0 s and were killed"):
        process_scaling.measure_processes(checked(), 64, CPU, processes=2, threads=1, seconds=0.0)
    assert [worker.returncode for worker in started] == [-9, -9]


WRITE_ENVIRONMENT = """
import json, os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
(folder / (os.environ["RANK"] + ".json")).write_text(json.dumps(dict(os.environ)))
if os.environ["RANK"] == "0":
    job = json.loads((folder / "job.json").read_text())
    (folder / "cost.json").write_text(json.dumps({"ms": job["images"], "memory": None}))
"""


def test_processes_are_told_their_rank_threads_and_job(started, monkeypatch, tmp_path):
    monkeypatch.setattr(process_scaling, "WORKER", WRITE_ENVIRONMENT)
    folder = nullcontext(str(tmp_path))
    monkeypatch.setattr(process_scaling.tempfile, "TemporaryDirectory", lambda prefix: folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # must not reach the workers
    cost = process_scaling.measure_processes(
        checked(), 64, CPU, processes=2, threads=1, seconds=0.0
    )
    assert cost == StepCost(64, None)
    assert [worker.returncode for worker in started] == [0, 0]
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for rank, environment in enumerate(told):
        assert environment["RANK"] == environment["LOCAL_RANK"] == str(rank)
        assert environment["WORLD_SIZE"] == "2"
        assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "1"
    assert told[0]["MASTER_ADDR"] == told[1]["MASTER_ADDR"]
    assert told[0]["MASTER_PORT"] == told[1]["MASTER_PORT"]


def work(folder):
    """What an interpreter that was started does, in a process of the group of the tests."""

    def fail(status):
        raise RuntimeError(f"exit status {status}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["-c", str(folder)])
        patch.setattr(os, "_exit", fail)  # or the group would be lost to the other tests
        exec(process_scaling.WORKER)


def test_two_processes_share_a_batch_and_measure_it(two_processes, tmp_path):
    job = {"recipe": to_dict(checked()), "images": 64, "device": "cpu", "seconds": 0.0}
    (tmp_path / "job.json").write_text(json.dumps(job))
    two_processes(work, tmp_path)
    cost = StepCost(**json.loads((tmp_path / "cost.json").read_text()))
    assert cost.ms > 0 and cost.memory is None


FAIL_OR_SLEEP = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit("RuntimeError: failing on request")
time.sleep(60)
"""


def test_a_process_that_fails_is_quoted_and_the_others_are_killed(started, monkeypatch):
    monkeypatch.setattr(process_scaling, "WORKER", FAIL_OR_SLEEP)
    with pytest.raises(
        UserError, match=r'Process 2 of 2 .* it printed "RuntimeError: failing on request"'
    ):
        process_scaling.measure_processes(checked(), 64, CPU, processes=2, threads=1, seconds=0.1)
    assert [worker.returncode for worker in started] == [-9, 1]


def test_a_worker_prints_its_error_and_exits_without_waiting_for_the_others(
    tmp_path, monkeypatch, capsys
):
    exits = []
    monkeypatch.setattr(sys, "argv", ["-c", str(tmp_path)])
    monkeypatch.setattr(os, "_exit", exits.append)
    process_scaling.run_worker()  # there is no job to read
    assert exits == [1]
    assert capsys.readouterr().err.startswith("FileNotFoundError: ")
