"""The page of several runs: what is overlaid, compared and left out; and in a real browser."""

import json
import subprocess
import sys

import pytest

from selfsight.cli.main import main
from selfsight.errors import UserError
from selfsight.report_page import write_several
from selfsight.run_files.run_folder import Run
from tests.report_page import folders
from tests.report_page.browser_window import Window
from tests.report_page.folders import HOSTILE, RECIPE, analyze


def content(page):
    text = page.read_text().split('<script type="application/json" id="data">')[1]
    return json.loads(text.split("</script>")[0])


@pytest.fixture
def runs(tmp_path):
    """Two seeds of one recipe, and a run of another method."""
    made = [folders.make_run(tmp_path / f"moco-seed{i}") for i in range(2)]
    made.append(folders.make_run(tmp_path / "simclr"))
    for i, run in enumerate(made):
        recipe = {**RECIPE, "seed": i % 2, "changed": ["seed"] * i}
        if i == 2:
            recipe |= {"method": {"name": "simclr", "temperature": 0.5}}
        run.recipe_path.write_text(json.dumps(recipe))
        run.write_result("online_knn", {"accuracy": 0.5 + i / 10, "settings": {}})
        analyze(run)
    return made


def test_curves_results_and_settings_of_all_runs_are_in_one_page(runs, tmp_path):
    page, problems = write_several(runs)
    assert page == tmp_path / "comparison.html" and problems == []
    found = content(page)
    curves = {curve["key"]: curve["series"] for curve in found["curves"]}
    assert {"loss", "lr", "online_knn"} <= curves.keys()
    assert [[one["run"], len(one["points"])] for one in curves["loss"]] == [
        [0, 20],
        [1, 20],
        [2, 20],
    ]
    log = runs[1].records()
    assert curves["loss"][1]["points"][7] == [70, 0.7, pytest.approx(log[7]["loss"], 1e-5), 14.0]
    knn = next(row for row in found["measures"] if row["name"] == "knn")
    assert knn["cells"][0] == {"value": 0.7, "low": 0.6, "high": 0.8, "n": None}
    settings = {row["name"]: row["values"] for row in found["settings"]}
    assert settings["method.name"] == ["moco", "moco", "simclr"]
    assert settings["method.queue_size"] == ["512", "512", ""]
    assert "epochs" not in settings and not any(name.startswith("changed") for name in settings)
    (spread,) = [one for one in found["seeds"] if one["name"] == "online_knn"]
    assert (spread["n"], spread["runs"]) == (2, ["moco-seed0", "moco-seed1"])
    assert (spread["mean"], spread["std"]) == pytest.approx((0.55, 0.1 / 2**0.5))
    charts = {chart["title"]: chart["series"] for chart in found["histograms"]}
    similar = charts["Similarity of an image's views, backbone"]
    assert [one["run"] for one in similar] == [0, 1, 2]
    assert sum(share for _, share in similar[0]["points"]) == pytest.approx(1)
    assert [len(chart["points"]) for chart in found["against_time"]] == [3] * 3


def test_seeds_that_were_measured_in_other_ways_have_no_common_mean(runs):
    runs[1].write_result("online_knn", {"accuracy": 0.6, "settings": {"num_classes": 3}})
    seeds = {one["name"] for one in content(write_several(runs)[0])["seeds"]}
    assert "knn" in seeds and "online_knn" not in seeds


def test_a_damaged_run_and_one_of_other_images_are_named_and_the_others_shown(runs, capsys):
    runs[0].log_path.write_text("{\n")
    recipe = json.loads(runs[2].recipe_path.read_text())
    images = {"images": 7, "data_fingerprint": {"images": 7, "names": "x", "bytes": "y"}}
    runs[2].recipe_path.write_text(json.dumps(recipe | images))
    out = runs[0].path.parent / "new" / "page.html"
    main(["report", *(str(run.path) for run in runs), "--out", str(out)])
    said = capsys.readouterr()
    assert "Skipped moco-seed0: " in said.err and "log.jsonl" in said.err
    assert "simclr was trained on other images (shapes, 7) than moco-seed1" in said.err
    assert "new/page.html" in said.out
    found = content(out)
    assert [run["name"] for run in found["runs"]] == ["moco-seed1", "simclr"]
    names = {row["name"] for row in found["measures"]}
    # The first run's recipe says no fingerprint, so that its results have the path in its place.
    assert len([name for name in names if name.startswith("online_knn on")]) == 2
    with pytest.raises(UserError, match=r"Skipped .* is not a run folder"):
        write_several([Run(out.parent / "a"), Run(out.parent / "b")])
    with pytest.raises(UserError, match="moco-seed1 is given twice"):
        write_several([runs[1], *runs])
    with pytest.raises(UserError, match="Give at most"):
        write_several(runs * 10)


@pytest.mark.parametrize("part", ["data", "method", "backbone", "optim"])
def test_a_part_of_the_recipe_that_holds_no_settings_is_named(part, tmp_path):
    (tmp_path / "recipe.json").write_text(f'{{"{part}": NaN}}')
    with pytest.raises(UserError, match=rf"recipe.json \({part}\) is damaged: it holds NaN"):
        Run(tmp_path).saved_recipe()


def test_the_page_of_several_runs_imports_no_torch(runs):
    code = (
        "import sys; from pathlib import Path; from selfsight.report_page import write_several; "
        "from selfsight.run_files.run_folder import Run; "
        f"write_several([Run(Path(p)) for p in {[str(run.path) for run in runs]!r}]); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.browser
def test_a_browser_draws_every_run_hides_one_and_obeys_no_name(runs, browser, tmp_path):
    evil = HOSTILE[1].replace("/", "|")
    hostile = folders.make_run(tmp_path / evil)
    recipe = {**RECIPE, "method": {"name": HOSTILE[0], HOSTILE[0]: HOSTILE[2]}}
    hostile.recipe_path.write_text(json.dumps(recipe))
    hostile.write_result(HOSTILE[1].replace("/", "|"), {"accuracy": 0.5})
    said = {"verdict": "learning", "sentence": HOSTILE[0], "evidence": []}
    hostile.write_result("verdict", said)
    page, _ = write_several([*runs, hostile])
    window = Window(browser)
    tab = window.open_file(page)
    loss = tab.locator("#curves figure").first
    assert loss.locator("path.line").count() == 4
    colors = loss.locator("path.line").evaluate_all("l => l.map((e) => getComputedStyle(e).stroke)")
    assert len(set(colors)) == 4
    tab.get_by_role("button", name="simclr").click()
    assert loss.locator("path.line").count() == 3
    tab.get_by_role("button", name="Minutes").click()
    area = loss.locator(".plot")
    area.focus()
    area.press("ArrowLeft")
    words = area.get_attribute("aria-valuetext")
    assert words.startswith("minutes ") and "moco-seed0: " in words and "simclr" not in words
    assert tab.locator("#features figure").count() == 4
    assert tab.locator("#features figure").first.locator("path").count() == 2  # simclr is hidden
    assert tab.locator("#results table").count() == 2
    assert evil in tab.locator("#runs").inner_text()
    assert tab.evaluate("window.hacked") is None
    assert tab.locator(".missing").count() == 0
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert window.complaints == []
    window.context.close()


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 420])
def test_a_long_name_does_not_cover_the_next_column(width, browser, tmp_path):
    names = ["jcl_multi_key.cifar10_jcl_multi_key.seed0.6d271d9494b0", "short"]
    page, _ = write_several([folders.make_run(tmp_path / name) for name in names])
    window = Window(browser)
    tab = window.open_file(page)
    tab.set_viewport_size({"width": width, "height": 800})
    button = tab.get_by_role("button", name=names[0]).bounding_box()
    method = tab.locator("#runs tbody tr").first.locator("td").first.bounding_box()
    assert button["x"] + button["width"] <= method["x"] and button["width"] > 100
    window.context.close()
