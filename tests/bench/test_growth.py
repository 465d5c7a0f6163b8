"""What grows is set, one thing at a time, and all else stays."""

from dataclasses import replace

import pytest
import torch
from rich.console import Console

from sightline.bench import costs, growth, run
from sightline.recipes import recipe


@pytest.fixture
def small(monkeypatch):
    """The recipes that were run, in place of running them."""
    ran = []

    def end_to_end(made, pictures, device, seconds):
        ran.append((made, len(pictures)))
        return {"ms": 8.0}

    monkeypatch.setattr(growth, "end_to_end", end_to_end)
    monkeypatch.setattr(growth, "PICTURES", (50, 70))
    monkeypatch.setattr(growth, "FEW", 32)
    return ran


def measured(name, console):
    made = replace(recipe(name), batch_size=64)
    return made, costs(made, torch.device("cpu"), seconds=0.01, console=console)


def test_batch_queue_and_pictures_grow_by_themselves(small, capsys):
    base, found = measured("moco.cifar10_r18_200ep", Console())
    assert [(c.what, c.value) for c in found] == [
        *(("batch", 64 * n) for n in (1, 2, 4, 8)),
        *(("queue", 4096 * n) for n in (1, 2, 4, 8)),
        *(("pictures", n) for n in (50, 70)),
    ]
    for cost, (made, count) in zip(found, small, strict=True):
        assert cost.images_per_second == 1000 * made.batch_size / 8
        asked = {"batch": made.batch_size, "queue": made.method.queue_size, "pictures": count}
        assert asked[cost.what] == cost.value
        if cost.what != "batch":
            assert made.batch_size == base.batch_size
        if cost.what != "queue":
            assert made.method == base.method
        assert count >= 2 * made.batch_size or cost.what == "pictures"
    assert "32,768" in capsys.readouterr().out


def test_views_grow_where_a_method_takes_any_number(small):
    _, found = measured("msbreg.cifar10_r18_100ep", Console(quiet=True))
    views = [cost.value for cost in found if cost.what == "views"]
    assert views == [2, 4, 8, 16]
    assert [len(made.views) for made, _ in small[4:8]] == views
    assert found[0].to_dict()["memory"] is None


def test_the_command_prints_and_returns_it(small, capsys):
    found = run("moco.cifar10_r18_200ep", device="cpu", growing=True)
    assert [row["what"] for row in found["growth"]][-1] == "pictures"
    assert "queue" in capsys.readouterr().out
