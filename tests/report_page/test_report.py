import ast
import json
import math
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsight import report_page
from selfsight.errors import UserError
from selfsight.report_page import curves, feature_figures
from selfsight.report_page.page import SCRIPTS
from selfsight.run_files.run_folder import Run
from tests.report_page.folders import HOSTILE, RECIPE, analyze, records


class Page(HTMLParser):
    """What an HTML parser finds: the tags, their attributes, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        if self.tags:
            self.texts.setdefault(self.tags[-1], []).append(data)

    def data(self) -> Any:
        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is not JSON; a browser would refuse it")

        return json.loads(self.texts["script"][0], parse_constant=refuse)


def page(run: Run) -> Page:
    return Page(report_page.write(run).read_text("utf-8"))


def test_the_page_lies_in_the_run_folder_and_nothing_else_is_left(make_run):
    run = make_run()
    before = set(run.path.iterdir())
    assert report_page.write(run) == run.path / "report.html"
    assert set(run.path.iterdir()) - before == {run.report}


def test_the_page_shows_what_the_folder_holds(make_run):
    data = page(make_run()).data()
    assert data["title"] == "r1"
    assert data["verdict"]["verdict"] == "learning"
    assert data["verdict"]["evidence"][0]["meaning"] == "it fell"
    values = {bar["key"]: bar["value"] for bar in data["bars"]}
    assert values == {
        "knn_accuracy": 0.7,
        "knn_untrained_accuracy": 0.3,
        "online_knn_accuracy": 0.75,
        "online_knn_untrained_accuracy": 0.35,
        "pixels": 0.2,
        "color_histogram": 0.15,
        "linear_accuracy": 0.8,
        "linear_untrained_accuracy": 0.4,
        "chance": 0.1,
    }
    free = ["retrieval", "effective_rank", "alignment"]
    assert [row["key"] for row in data["label_free"]] == free
    curves = {curve["key"]: curve for curve in data["curves"]}
    assert curves["loss"]["points"][0] == [0, 0, 6]
    assert curves["loss"]["levels"] == {"chance": pytest.approx(math.log(513))}
    assert curves["online_knn"]["levels"] == {"untrained": 0.35, "chance": 0.1}
    assert len(curves["online_knn"]["points"]) == 4
    assert "momentum" not in curves  # this method has no teacher
    assert data["reasons"]["batch_size"] == "It fits."
    assert data["versions"] == {"torch": "2.11.0"}
    assert [len(data["sheets"]["map"]["points"]), len(data["sheets"]["views"]["rows"])] == [6, 2]


def test_a_run_that_starts_from_an_encoder_is_compared_with_that(make_run):
    run = make_run()
    run.recipe_path.write_text(json.dumps(RECIPE | {"start": {"name": "timm:resnet18"}}))
    data = page(run).data()
    names = [bar["name"] for bar in data["bars"]]
    assert "kNN, start encoder" in names and not any("untrained" in name for name in names)
    levels = {curve["key"]: curve["levels"] for curve in data["curves"]}
    assert levels["online_knn"] == {"start": 0.35, "chance": 0.1}
    assert "the start encoder" in [row["other"] for row in data["differences"]]
    assert data["before"] == "start encoder"


def test_the_page_has_intervals_classes_and_the_confusion_matrix(make_run):
    data = page(make_run()).data()
    bars = {bar["key"]: bar for bar in data["bars"]}
    assert (bars["knn_accuracy"]["low"], bars["knn_accuracy"]["high"]) == (0.6, 0.8)
    assert bars["pixels"]["low"] is None
    (classes,) = data["classes"]
    assert [row["name"] for row in classes["rows"]] == ["dog", "cat"]  # the worst first
    assert classes["rows"][0] == {"name": "dog", "value": 0.8, "low": 0.55, "high": 0.85, "n": 10}
    assert classes["labels"] == ["cat", "dog"]
    assert classes["confusion"] == [[9, 1], [1, 9]]
    assert "confusion" not in data["results"]["knn"] and "per_class" not in data["results"]["knn"]


def test_every_other_protocol_has_bars_and_differences_with_intervals(make_run):
    run = make_run()
    found = {"box_AP": 0.4, "box_AP_low": 0.3, "box_AP_high": 0.5, "untrained_box_AP": 0.35}
    pair = {"difference": 0.05, "low": -0.02, "high": 0.11, "n": 72, "paired": True}
    differences = {"untrained": {"box_AP": pair, "box_AP50": pair}, "timm:x": {"box_AP": {}}}
    run.write_result("detection.small_fpn", found | {"differences": differences})
    data = page(run).data()
    bars = {bar["name"]: bar for bar in data["bars"]}
    ours = bars["detection.small_fpn, after training"]
    assert (ours["value"], ours["low"], ours["high"]) == (0.4, 0.3, 0.5)
    assert bars["detection.small_fpn, untrained network"]["value"] == 0.35
    rows = [row for row in data["differences"] if row["file"] == "detection.small_fpn"]
    assert rows == [
        {"file": "detection.small_fpn", "other": "the untrained network"} | data_of(pair)
    ]


def data_of(pair):
    return {key: pair[key] for key in ("difference", "low", "high", "n")}


@pytest.mark.parametrize("broken", [[[1]], "no matrix", [[1, 2], [3, None]], None])
def test_a_matrix_of_another_shape_is_left_out(make_run, broken):
    run = make_run()
    run.write_result("knn", run.result("knn") | {"confusion": broken})
    (classes,) = page(run).data()["classes"]
    assert classes["confusion"] is None and len(classes["rows"]) == 2


@pytest.mark.parametrize("text", HOSTILE)
def test_names_and_labels_are_never_markup(make_run, text):
    plain = page(make_run("plain"))
    run = make_run("hostile", names=[text] * 6, labels=[text] * 6)
    run.write_result("verdict", {"verdict": text, "sentence": text, "evidence": [{"name": text}]})
    found = page(run)
    assert found.tags == plain.tags
    assert [name for name, _ in found.attributes] == [name for name, _ in plain.attributes]
    data = found.data()
    assert data["sheets"]["map"]["points"][3]["name"] == text
    assert data["sheets"]["neighbors"]["rows"][0]["label"] == text
    assert data["verdict"]["sentence"] == text


@pytest.mark.parametrize("text", HOSTILE)
def test_no_key_and_no_value_of_any_file_is_markup(make_run, text):
    """Settings, results, classes, log and layouts, each with its keys doubled by hostile ones."""

    def poison(value):
        if isinstance(value, dict):
            hostile = {f"{key}.{text}": poison(item) for key, item in value.items()}
            return {key: poison(item) for key, item in value.items()} | hostile
        if isinstance(value, list):
            return [poison(item) for item in value]
        return text if isinstance(value, str) else value

    plain = page(make_run("plain"))
    run = make_run("hostile", log=[poison(record) for record in records(20)])
    for path in (run.recipe_path, *run.results.glob("*.json"), *run.images.glob("*.json")):
        path.write_text(json.dumps(poison(json.loads(path.read_text()))))
    run.write_result(text.replace("/", "|"), {text: text, "accuracy": text})
    found = page(run)
    assert found.tags == plain.tags
    assert [name for name, _ in found.attributes] == [name for name, _ in plain.attributes]
    assert f"epochs.{text}" in found.data()["recipe"]


def test_a_hostile_folder_name_is_a_title(make_run):
    name = "<img src=x onerror=alert(1)>"
    found = page(make_run(name))
    assert "img" not in found.tags
    assert found.texts["title"][0] == f"{name} · selfsight report"


def test_a_name_that_is_not_unicode_does_no_harm(make_run):
    name = b"\xff.jpg".decode("utf-8", "surrogateescape")
    data = page(make_run(names=[name] * 6)).data()
    assert data["sheets"]["views"]["rows"][0]["name"] == name


def test_nothing_is_loaded_from_elsewhere(make_run):
    run = make_run()
    found = page(run)
    assert "://" not in run.report.read_text("utf-8")
    addresses = [value for name, value in found.attributes if name in ("src", "href")]
    assert all(value.startswith(("#", "data:")) for value in addresses)
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    )
    assert ("content", policy) in found.attributes


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_set_text_and_never_markup(script):
    code = resources.files("selfsight.report_page").joinpath(script).read_text("utf-8")
    markup = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "</script")
    assert not [word for word in markup if word in code]


@pytest.mark.parametrize("missing", ["log.jsonl", "results", "images", "all"])
def test_an_unfinished_run_has_a_page(make_run, missing):
    run = make_run()
    for name in ("log.jsonl", "results", "images") if missing == "all" else (missing,):
        place = run.path / name
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    data = page(run).data()
    assert bool(data["curves"][0]["points"]) is (missing in ("results", "images"))
    assert (data["verdict"]["verdict"] == "running") is (missing in ("results", "all"))
    assert (data["sheets"]["map"] is None) is (missing in ("images", "all"))
    assert report_page.summary(run)["verdict"] == data["verdict"]["verdict"]


def test_a_layout_without_its_sheet_counts_as_missing(make_run):
    run = make_run()
    (run.images / "map.jpg").unlink()
    assert page(run).data()["sheets"]["map"] is None


def test_a_run_without_a_verdict_says_how_far_it_is(make_run):
    run = make_run()
    (run.results / "verdict.json").unlink()
    assert "epoch 1.9 of 4" in report_page.summary(run)["sentence"]


def test_a_single_record_is_a_curve_of_one_point(make_run):
    data = page(make_run(log=records(1))).data()
    assert data["curves"][0]["points"] == [[0, 0, 6]]


def test_gradient_norms_are_a_curve_for_each_layer_and_dips_are_marked():
    log = records(20)
    measured = [record for record in log if "online_knn" in record]
    for record, dips in zip(measured, (0, 1, 1, 2), strict=True):
        record["online_knn_dips"] = dips
    for record in log:
        record |= {"grad_norm.blocks.0": 0.5, "grad_norm.patch_embed": 2.0}
    drawn = {curve["key"]: curve for curve in curves.curves(log, {}, before="untrained network")}
    assert drawn["online_knn"]["dips"] == [measured[1]["step"], measured[3]["step"]]
    layers = [curve for key, curve in drawn.items() if key.startswith("grad_norm.")]
    titles = [curve["title"] for curve in layers]
    assert titles == ["Gradient norm: blocks.0", "Gradient norm: patch_embed"]
    assert [len(curve["points"]) for curve in layers] == [20, 20]
    assert not any(
        "grad_norm" in curve["key"]
        for curve in curves.curves(records(20), {}, before="untrained network")
    )


def test_online_knn_comes_from_the_log_if_there_is_no_result(make_run):
    run = make_run()
    (run.results / "online_knn.json").unlink()
    assert report_page.summary(run)["figures"]["online_knn_accuracy"] == pytest.approx(
        0.3 + 0.4 * 19 / 20
    )


def test_baselines_on_training_images_replace_missing_ones(make_run):
    run = make_run()
    run.write_result("online_baselines", {"pixels": 0.5, "chance": 0.25})
    assert report_page.summary(run)["figures"]["pixels"] == 0.2
    (run.results / "baselines.json").unlink()
    assert report_page.summary(run)["figures"]["pixels"] == 0.5
    assert report_page.summary(run)["figures"]["chance"] == 0.25


def test_values_that_are_not_finite_become_gaps_and_are_counted(make_run):
    log = records(10)
    log[3]["loss"], log[4]["loss"], log[5]["loss"] = math.nan, math.inf, None
    run = make_run(log=log)
    (run.results / "knn.json").write_text('{"accuracy": NaN, "settings": {"x": Infinity}}')
    data = page(run).data()
    assert [point[0] for point in data["curves"][0]["points"]] == [0, 10, 20, 60, 70, 80, 90]
    assert data["curves"][0]["missing"] == 3
    assert data["results"]["knn"]["settings"]["x"] is None
    json.dumps(report_page.summary(run), allow_nan=False)


def test_a_folder_that_is_no_run_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"has no recipe\.json"):
        report_page.write(Run(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_long_log_is_thinned_and_keeps_its_extremes():
    log = records(20_000)
    log[17_777]["loss"], log[3_333]["loss"] = 99.0, -99.0
    drawn = curves.curves(log, {}, before="untrained network")
    assert max(len(curve["points"]) for curve in drawn) <= 2000
    points = drawn[0]["points"]
    assert {(177_770, 99.0), (33_330, -99.0)} <= {(step, value) for step, _, value in points}
    assert (points[0][0], points[-1][0]) == (0, 199_990)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(4, 60))
def test_thinning_keeps_order_ends_and_extremes(values, most):
    points = [(step, None, value) for step, value in enumerate(values)]
    kept = curves.downsample(points, most)
    assert len(kept) <= most
    assert set(kept) <= set(points)
    assert kept == sorted(kept, key=lambda point: point[0])
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert {min(values), max(values)} <= {value for _, _, value in kept}


def test_the_summary_holds_verdict_figures_and_places(make_run):
    run = make_run()
    report_page.write(run)
    found = report_page.summary(run)
    assert (found["verdict"], found["sentence"]) == ("learning", "It is learning.")
    assert (found["figures"]["step"], found["figures"]["linear_accuracy"]) == (190, 0.8)
    assert found["intervals"] == {"knn_accuracy": [0.6, 0.8]}
    assert found["label_free"]["retrieval"] == run.result("label_free")["retrieval"]
    assert found["paths"]["report"] == str(run.report)
    assert "checkpoints" not in found["paths"]  # there are none in this folder


def test_commands_survive_any_folder_name(make_run):
    run = make_run('it\'s a $HOME; SHELL "run"')
    codes = [command["code"] for command in page(run).data()["commands"]]
    assert shlex.split(codes[0]) == ["selfsight", "resume", str(run.path)]
    images = run.saved_recipe()["data"]["path"]
    explore = next(code for code in codes if " explore " in code)
    assert shlex.split(explore) == ["selfsight", "explore", str(run.path), images]
    load = next(n for n in ast.walk(ast.parse(codes[-1])) if isinstance(n, ast.Constant))
    assert load.value == str(run.path)


def test_commands_of_a_method_from_outside_have_the_trust_that_they_need(make_run):
    run = make_run()
    saved = json.loads(run.recipe_path.read_text())
    run.recipe_path.write_text(json.dumps(saved | {"method": {"name": "own_package:Config"}}))
    *shell, python = [command["code"] for command in page(run).data()["commands"]]
    assert f"selfsight.load({str(run.path)!r}, trust=True)" in python
    words = [shlex.split(code)[1:] for code in shell]
    assert [w[0] for w in words if w[-1] != "--trust"] == ["report"]  # which reads no code


def test_the_report_needs_no_torch():
    code = "import selfsight.report_page, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_what_was_analyzed_becomes_charts(make_run):
    run = make_run()
    assert feature_figures.features(run.image_json("analysis")) == []
    analyze(run)
    charts = {chart["key"]: chart for chart in feature_figures.features(run.image_json("analysis"))}
    assert list(charts) == ["eigenvalues", "similarity", "variance", "gradients"]
    spectrum, *_ = charts["eigenvalues"]["series"]
    assert spectrum["name"] == "backbone"
    assert spectrum["points"] == [[1, 4.0], [2, 2.0], [3, 0.5]]  # a logarithm has no place for 0
    # empty bins at either end are left out, and the last one is closed
    assert charts["similarity"]["series"][1]["points"] == [[0.25, 3], [0.5, 5], [0.75, 0]]
    plain, ruled = charts["gradients"]["series"]
    assert plain["points"] == ruled["points"] == [[16, 2.0, 0.5], [64, 2.0, 0.5]]
    assert ruled["bound"] == [[16, 9.0], [64, 9.0]]


def test_gradients_after_kept_epochs_have_a_chart_each(make_run):
    """EqCo's figure 4: one run after several epochs."""
    run = make_run()
    analyze(run)
    found = run.image_json("analysis")
    found["epochs"] = [{"epoch": e, "gradients": found["gradients"]} for e in (10, 100)]
    charts = [chart for chart in feature_figures.features(found) if chart["key"] == "gradients"]
    ends = [chart["title"].removeprefix("Gradient norm") for chart in charts]
    assert ends == [" after epoch 10", " after epoch 100", ""]
    assert charts[0]["series"] == charts[2]["series"]


@pytest.mark.parametrize(
    "found",
    [
        *(None, [], {}, {"backbone": None}),
        {"backbone": {"similarity": {"edges": [0], "counts": [1]}}},
        {"gradients": [{"mean": None}, 3]},
        *({"epochs": kept} for kept in (3, [1], [{"epoch": 1}], [{"gradients": [{"mean": 1}]}])),
        {"projector": {"eigenvalues": [None, -1.0, "a"]}},
    ],
)
def test_an_analysis_of_unexpected_content_is_left_out(found):
    assert feature_figures.features(found) == []


def test_a_run_that_diverged_is_called_so(make_run):
    run = make_run(log=[])
    (run.results / "verdict.json").unlink(missing_ok=True)
    said = "By step 2 these are no longer finite: loss."
    run.add_event({"event": "diverged", "step": 2, "sentence": said})
    found = report_page.summary(run)
    assert found["verdict"] == "diverged" and found["sentence"] == f"The run diverged. {said}"
