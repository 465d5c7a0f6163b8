"""Every method has its row, rows are measured once, and the table says what they say."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from selfsight.bench import all_methods, run
from selfsight.bench.all_methods import FIRST_STEPS, NETWORKS, OTHER_ROWS, list_cases
from selfsight.bench.evaluation_speed import EVALUATIONS
from selfsight.bench.methods_table import OVERHEADS
from selfsight.bench.step_breakdown import Breakdown, Timing
from selfsight.data import Source
from selfsight.errors import UserError
from selfsight.recipe import ALL_METHODS, method_name
from selfsight.recipes import RECIPES

RESULT = Breakdown(
    recipe="",
    device="a GPU",
    batch_size=512,
    timings=(Timing(name="loss alone", ms=1.25, images_per_second=1.0),),
    images_per_second=51200.0,
    limit=64000.0,
    fraction_of_limit=0.8,
    data_wait=0.0,
    first_step=1.0,
    step_mode="graph",
    memory=3 * 2**29,
    storage="cache",
    decoder="cpu",
    overhead=dict.fromkeys(OVERHEADS.values(), 0.5),
)


@pytest.fixture
def measured(monkeypatch):
    """Names of the recipes that would have been measured, of which one does not fit in memory."""
    names = []

    def record(name, recipe, *_, **__):
        names.append(name)
        if "vicreg" in name:
            raise torch.OutOfMemoryError("CUDA out of memory.\nmore")
        return replace(RESULT, recipe=name)

    start = {"imports": 1.0, "data": 2.0, "first_step": 20.0, "full_speed": 30.04}
    start |= {"images_per_second": 51200.0}
    monkeypatch.setattr(all_methods, "measure_breakdown", record)
    monkeypatch.setattr(all_methods, "measure_evaluation", record)
    starts = {"cold": start, "warm": start | {"first_step": 5.0}}
    monkeypatch.setattr(
        all_methods, "measure_first_step", lambda name, *_, **__: names.append(name) or starts
    )
    forecast = SimpleNamespace(peak=2**31)
    monkeypatch.setattr(all_methods, "foresee_memory", lambda *_: forecast)
    none = Source("none", [], None, (), lambda i: b"")
    monkeypatch.setattr(all_methods, "open_recipe_source", lambda recipe: none)
    monkeypatch.setattr(all_methods, "reset_peak_memory", lambda device: None)  # nothing was built
    return names


def test_every_method_is_measured_with_every_network_that_it_has_a_recipe_for():
    for network, wanted in NETWORKS.items():
        cases = list_cases([network])
        data = wanted.recipes.partition("_")[0]
        with_recipe = {name.partition(".")[0] for name in RECIPES if f".{data}_" in name}
        assert {case.method for case in cases} == (with_recipe & {*ALL_METHODS}) | {*OTHER_ROWS}
        assert len(with_recipe) >= 15
        for case in cases:
            recipe = case.build(None, FIRST_STEPS.get(case.method, ()))
            assert case.method in (*OTHER_ROWS, method_name(recipe.method))
            assert recipe.batch_size == wanted.batch_size
            assert recipe.backbone.name.startswith(network)
    views = [len(c.build(None, ()).views) for c in list_cases(["resnet18", "msbreg"])]
    assert sorted(views) == [2, 4, 8]


def test_rows_are_measured_once_and_again_after_an_error(measured, tmp_path, capsys):
    options = {"all": True, "device": "cpu", "out": tmp_path, "only": ("resnet18",)}
    rows = run(**options)["rows"]
    assert (
        len(rows)
        == len(measured)
        == len(list(tmp_path.rglob("*.json")))
        == len(list_cases(["resnet18"]))
    )
    measured.clear()
    run(**options, minutes=5.0)
    assert measured == ["vicreg.cifar10_r18_1000ep"]
    Path(tmp_path / "resnet18" / "moco.json").write_text("{}")
    measured.clear()
    run(**options, quiet=True)
    assert measured == ["moco.cifar10_r18_200ep", "vicreg.cifar10_r18_1000ep"]
    assert "80% of 64,000, 1.5 GiB" in capsys.readouterr().out
    table = (tmp_path / "table.md").read_text().splitlines()
    assert "| moco | 51,200 | 64,000 | 80 % | 1.5 | 2.0 | 10.00 | 8.00 |" in " ".join(table)
    assert "| first_step_blocks | warm | 1.0 | 3.0 | 5.0 | 30.0 | 51,200 |" in table
    assert "| vicreg | CUDA out of memory. |" in table


def test_the_table_has_the_rows_of_all_calls_and_methods_that_need_labels_get_them(
    measured, tmp_path, monkeypatch
):
    opened = []
    none = Source("none", [], None, (), lambda i: b"")
    monkeypatch.setattr(all_methods, "open_recipe_source", lambda r: opened.append(r) or none)
    for network, method in (("resnet18", "moco"), ("resnet50", "supervised")):
        run(all=True, only=[network, method], out=tmp_path, data="x", device="cpu", quiet=True)
    assert [recipe.data.labels for recipe in opened] == [False, True]
    table = (tmp_path / "table.md").read_text()
    assert "ResNet-18" in table and "| moco |" in table and "| supervised |" in table


def test_other_options_are_measured_anew_and_time_ends_between_rows(measured, tmp_path, capsys):
    options = {"all": True, "device": "cpu", "out": tmp_path, "only": ("resnet18", "moco", "byol")}
    run(**options)
    measured.clear()
    assert len(run(**options, batch_size=128, minutes=1e-9)["rows"]) == 2
    assert measured == ["byol.cifar10_r18_100ep"]
    printed = capsys.readouterr().out
    assert "Time is up with 1 row left" in printed
    assert printed.count("--batch-size 16 is faster") == 1  # where none was given


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"all": True, "growth": True}, "--growth has no effect"),
        ({"minutes": 3.0}, "--minutes is for --all"),
        ({"workers": (4,)}, "--workers is for --against lightly"),
        ({"cores": 10**6}, "--cores is 1000000, but this process may use"),
        ({"all": True, "only": ("resnet19",)}, 'Did you mean "resnet18"'),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        run(device="cpu", **options)


@pytest.mark.slow
def test_a_small_network_is_measured_on_a_cpu(tmp_path):
    flags = ("--backbone.name", "resnet8_narrow")
    only = ("resnet18", "dino", "moco", "supervised", *EVALUATIONS)  # dino: a head with an argument
    rows = run(
        all=True,
        device="cpu",
        out=tmp_path,
        only=only,
        batch_size=64,
        seconds=0.01,
        settings=flags,
        quiet=True,
    )["rows"]
    for row in rows:
        result = json.loads(json.dumps(row))["result"]
        assert row["name"] in EVALUATIONS or row["foreseen"] > 2**20
        step, limit = (1000 * 64 / result[k] for k in ("images_per_second", "limit"))
        assert limit + sum(result["overhead"].values()) == pytest.approx(step)
    assert [row["name"] for row in rows] == ["dino", "moco", "supervised", *EVALUATIONS]


def test_a_method_without_a_recipe_for_the_network_is_said():
    with pytest.raises(UserError, match="--only resnet50 dino selects no row"):
        list_cases(["resnet50", "dino"])
