"""Tables and plots of the pages: what the ledger says, and nothing else."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from docs.fill_results import PLOTS, ROOT, draw_plots, fill, list_pages

from selfsight.cli.print_catalog import print_study
from selfsight.options.study_options import STUDY_DEFAULTS
from selfsight.studies import STUDIES
from selfsight.studies.judge_claims import arm_results
from selfsight.studies.ledger import read_ledger
from selfsight.studies.ledger_plots import draw_study, draw_time
from selfsight.studies.plan_jobs import plan_jobs
from selfsight.studies.rank_runs import list_regrets
from selfsight.studies.result_tables import (
    list_results,
    render_regrets,
    render_results,
    render_short,
)
from selfsight.studies.study_page import build_study_page
from tests.studies.test_train_arms import entry_of, jobs_of

RESULTS = ROOT / "docs" / "results.md"
EQCO = STUDIES["eqco_negatives"]
SVG = "{http://www.w3.org/2000/svg}"


def entries_of(arm: str, *accuracies: float) -> list:
    jobs = jobs_of(arm, seeds=tuple(range(len(accuracies))))
    return [
        entry_of(
            job,
            results={
                name: {"accuracy": a / 100, "low": a / 100 - 0.01, "high": a / 100 + 0.01}
                for name in ("knn", "knn_200", "linear")
            },
            version={"commit": "abc", "sources": "def"},
        )
        for job, a in zip(jobs, accuracies, strict=True)
    ]


def split_key(plot: str) -> tuple[ElementTree.Element, list[str]]:
    """A plot without its key, and the texts of the key."""
    svg = ElementTree.fromstring(plot)
    rows = [g for g in svg.iter(f"{SVG}g") if g.get("transform", "").startswith("translate(0 ")]
    for row in rows:
        svg.remove(row)
    return svg, [row.find(f"{SVG}text").text for row in rows]


def read_heat_map(plot: str) -> dict[tuple[str, str], str]:
    """The number in each row and column, by the names at their sides."""
    svg = ElementTree.fromstring(plot)
    texts = [(t.get("x"), t.get("y"), t.text) for t in svg.iter(f"{SVG}text")]
    numbers = [text for text in texts if re.fullmatch(r"[\d.]+", text[2])]
    names = [text for text in texts if text not in numbers]
    return {
        (
            next(name for _, other, name in names if other == y),
            next(name for other, _, name in names if other == x),
        ): number
        for x, y, number in numbers
    }


@pytest.fixture(scope="module")
def drawn():
    """What the ledger has, and the plots of it."""
    entries = read_ledger()
    return entries, draw_plots(entries)


def test_every_page_says_what_the_ledger_says(drawn):
    entries, plots = drawn
    pages = list_pages()
    assert RESULTS in pages
    for page in pages:
        text = page.read_text()
        assert fill(page, text, entries, plots) == text, (
            f"run: python -m docs.fill_results ({page.name})"
        )
    for name, plot in plots.items():
        assert (PLOTS / name).read_text() == plot, f"fill_results: {name}"
    assert {path.name for path in PLOTS.glob("*.svg")} == {*plots}


def test_a_number_that_the_ledger_does_not_have_is_replaced(drawn):
    text = RESULTS.read_text()
    before, marker, table = text.partition("<!-- ledger: methods cifar10 -->")
    wrong = before + marker + table.replace("| 200 |", "| 201 |", 1)
    assert wrong != text
    assert fill(RESULTS, wrong, *drawn) == text


def test_a_table_has_mean_and_spread_of_seeds_and_says_what_was_not_run():
    entries = [*entries_of("cifar10_v2_k16", 70.0, 72.0, 74.0), *entries_of("cifar10_v2_k4096", 80)]
    rows = {row["arm"]: row for row in list_results(EQCO, "cifar10", entries)}
    assert rows["cifar10_v2_k16"]["linear"] == "72.0 ± 2.0"
    assert rows["cifar10_v2_k4096"]["linear"] == "80.0 [79.0, 81.0]"
    assert rows["cifar10_v2_eqco_k16"]["linear"] == "not run"
    # That of the paper's K = 4096.
    assert rows["cifar10_v2_k4096"]["published"] == "67.6 linear top-1 on ImageNet"
    text = render_results(EQCO, "cifar10", entries)
    assert "2 of 25 arms were run, 4 runs in all; CPU; code: abc." in text
    assert "\n| `cifar10_v2_k16` | 50 |" in text and "\n| `cifar10_v2_eqco_k16` |" not in text
    assert "Arms that were not run: `cifar10_v2_eqco_k16`, `cifar10_simo_k511`," in text
    assert "| MoCo v2: at K = 16, EqCo is better than the plain loss. | **not run** | - |" in text
    assert render_short(EQCO, "cifar10", entries, ["cifar10_v2_k16"]).count("\n") == 3


def test_runs_that_diverged_have_no_times_and_no_memory():
    (entry,) = entries_of("cifar10_v2_k16", 70.0)
    lost = replace(entry, results={}, diverged="the loss is not finite", peak_memory_gib=4.0)
    (row,) = [r for r in list_results(EQCO, "cifar10", [lost]) if r["seeds"]]
    assert row["linear"] == "diverged"
    assert [row[title] for title in ("training", "in all", "images/s", "memory")] == ["-"] * 4


def test_a_table_has_accuracies_on_other_images_if_any_were_measured():
    entries = entries_of("cifar10_v2_k16", 70.0, 71.0) + entries_of("cifar10_v2_k4", 60.0)
    assert "on other images" not in render_results(EQCO, "cifar10", entries)
    pets = {"linear": {"accuracy": 0.5, "low": 0.45, "high": 0.55}}
    blood = {"linear": {"accuracy": 0.9, "low": 0.85, "high": 0.95}}
    entries = [
        replace(entries[0], transfer={"pets": pets, "blood": blood}),
        replace(entries[1], transfer={"pets": {"linear": pets["linear"] | {"accuracy": 0.52}}}),
        replace(entries[2], transfer={"pets": pets}),
    ]
    table = render_results(EQCO, "cifar10", entries)
    assert "| arm | blood | pets |" in table
    assert "| `cifar10_v2_k16` | 90.0 [85.0, 95.0] | 51.0 ± 1.4 |" in table
    assert "| `cifar10_v2_k4` | - | 50.0 [45.0, 55.0] |" in table
    page = build_study_page(EQCO, "cifar10", entries)
    assert "<td>51.0 ± 1.4</td>" in page and "frozen encoders on other images" in page


def test_a_verdict_has_a_note_on_what_it_is_based_on(capsys, monkeypatch):
    arms = ("cifar10_v2_k16", "cifar10_v2_k4096")
    entries = [entry for arm in arms for entry in entries_of(arm, 70.0, 71.0)]
    assert "| note |" not in render_results(EQCO, "cifar10", entries)  # there are none
    entries = entries[::2]  # of one seed
    table = render_results(EQCO, "cifar10", entries)
    assert "| claim | verdict | difference in points | seeds | note |" in table
    assert "| **unclear** | +0.0 | 1 | one seed, and no spread is known |" in table
    monkeypatch.setattr("selfsight.cli.print_catalog.read_ledger", lambda: entries)
    print_study("eqco_negatives")
    assert "+0.0 (one seed, and no spread is known)" in " ".join(capsys.readouterr().out.split())


def test_a_plot_has_a_point_for_each_arm_of_ours_and_each_published_number():
    entries = [
        *entries_of("cifar10_v2_k16", 70.0, 72.0),
        *entries_of("cifar10_v2_k256", 75.0),
        *entries_of("cifar10_v2_k4096", 80.0),
    ]
    assert draw_study(EQCO, "cifar10", entries[:1]) == {}
    plots = draw_study(EQCO, "cifar10", entries)
    assert {*plots} == {"", "_published"}
    ours, key = split_key(plots[""])
    points = list(ours.iter(f"{SVG}circle"))
    assert [c.get("fill") == "#ffffff" for c in points] == [False, True, True]  # open: one seed
    heights = [float(c.get("cy")) for c in points]
    assert heights == sorted(heights, reverse=True)  # accuracy grows with K, and y points down
    assert key == [
        "MoCo v2",
        "several seeds: mean and standard deviation",
        "one seed: 95 % interval over test images",
    ]
    assert "CIFAR-10, ours" in plots[""]
    assert "ImageNet, published" in plots["_published"]
    published, _ = split_key(plots["_published"])
    # K of 256, 1024, 4096 and 16384, of MoCo v2 without EqCo.
    assert sum("z" in path.get("d") for path in published.iter(f"{SVG}path")) == 4
    results = arm_results(EQCO, "cifar10", entries)
    assert draw_time("cifar10", results)["_time"].count("<circle") == 3 + 2  # and the key


def test_the_bar_of_one_seed_is_the_interval_over_test_images_and_the_key_is_below_the_axes():
    entries = [*entries_of("cifar10_v2_k16", 70.0, 74.0), *entries_of("cifar10_v2_k4096", 80.0)]
    plot = draw_study(EQCO, "cifar10", entries)[""]
    several, one = (
        abs(float(low) - float(high))
        for low, high in re.findall(r' ([\d.]+)h8m-4 0V([\d.]+)m-4 0h8"', plot)
    )
    assert several / one == pytest.approx(8**0.5 / 1, rel=0.01)  # 72 ± 2.8, and 80 ± 1
    rows = [float(y) for y in re.findall(r"translate\(0 ([\d.]+)\)", plot)]
    titles = [float(y) for y in re.findall(r'y="([\d.]+)" text-anchor="middle"', plot)]
    height = float(re.search(r'viewBox="0 0 \d+ (\d+)"', plot)[1])
    assert max(titles) < min(rows) and max(rows) < height


def test_an_arm_has_the_color_of_its_line_in_all_plots():
    curve = {"epoch": [1.0, 2.0], "online_knn": [0.2, 0.3], "information_bound": [1.0, 2.0]}
    arms = ("cifar10_v2_k64", "cifar10_v2_eqco_k16", "cifar10_v2_k16", "cifar10_v2_k4096")
    entries = [replace(e, curve=curve) for arm in arms for e in entries_of(arm, 70.0)]
    plots = draw_study(EQCO, "cifar10", entries)
    assert {*plots} == {"", "_published", "_curves", "_bound"}
    pattern = r'h26" fill="none" stroke="(#\w+)" .*?(dasharray.*?)?/><text.*?>(.*?)<'
    looks = [
        {name: (color, dash) for color, dash, name in re.findall(pattern, plots[end])}
        for end in ("", "_curves", "_bound")
    ]
    line, curves, bound = looks
    assert curves == bound and {*curves} == {"v2_k16", "v2_eqco_k16", "v2_k4096"}
    assert curves["v2_k16"][0] == curves["v2_k4096"][0] == line["MoCo v2"][0]
    assert curves["v2_k16"] != curves["v2_k4096"]  # one is dashed
    assert curves["v2_eqco_k16"] == line["MoCo v2 with EqCo"] != line["MoCo v2"]


def test_a_heat_map_has_the_accuracy_of_each_pair_in_its_row_and_column():
    study = STUDIES["simclr_augmentations"]
    accuracies = {"cifar10_crop": 60.0, "cifar10_crop_color": 80.0, "cifar10_color_crop": 72.5}
    options = replace(STUDY_DEFAULTS, arms=tuple(accuracies))
    jobs = plan_jobs([study], options, lambda recipe: recipe)
    shares = [accuracies[job.arm] / 100 for job in jobs]
    entries = [
        entry_of(job, results={"linear": {"accuracy": share, "low": share, "high": share}})
        for job, share in zip(jobs, shares, strict=True)
    ]
    plots = draw_study(study, "cifar10", entries)
    assert {*plots} == {"_cells", "_published"}
    assert read_heat_map(plots["_cells"]) == {
        ("crop", "crop"): "60.0",
        ("crop", "color"): "80.0",
        ("color", "crop"): "72.5",
    }
    published = read_heat_map(plots["_published"])  # SimCLR's figure 5
    assert len(published) == 49
    assert (published["crop", "color"], published["color", "crop"]) == ("56.3", "55.8")
    assert draw_study(study, "cifar10", []) == {}
    text = render_results(study, "cifar10", entries)
    assert "| `cifar10_crop_color` |" not in text  # the figure has it
    assert "| Crop and color distortion are better than crop alone. | **unclear** | +20.0" in text


def test_curves_are_those_of_the_arms_that_claims_compare():
    curve = {
        "epoch": [1.0, 2.0, 3.0],
        "online_knn": [0.2, 0.3, None],
        "online_knn_dips": [0.0, 2.0],
    }
    arms = ("cifar10_v2_k16", "cifar10_v2_eqco_k16", "cifar10_v2_k64")  # the last is in no claim
    entries = [replace(e, curve=curve) for arm in arms for e in entries_of(arm, 70.0)]
    plots = draw_study(EQCO, "cifar10", entries)
    assert {*plots} == {"", "_published", "_curves"}  # no bound was logged
    curves, key = split_key(plots["_curves"])
    assert key == ["v2_k16", "v2_eqco_k16"]
    assert [path.get("d").count("L") for path in curves.iter(f"{SVG}path")] == [1, 1]
    text = render_results(EQCO, "cifar10", entries)
    assert "| memory | dips |" in text and "| - | 2 |" in text


def test_regret_is_the_best_accuracy_minus_that_of_the_recipe_that_a_criterion_chooses():
    entries = [
        replace(
            entry,
            label_free={"alpha": alpha},
            curve={"effective_rank": [99.0 - rank, rank, None]},
        )
        for arm, accuracies, alpha, rank in (
            ("cifar10_v2_k16", (69.0, 71.0), 1.0, 5.0),  # two seeds: the mean counts
            ("cifar10_v2_k64", (80.0,), 2.0, 9.0),
            ("cifar10_v2_k256", (76.0,), 0.9, 10.0),
        )
        for entry in entries_of(arm, *accuracies)
    ]
    left_out = [
        replace(entries[1], quick=True),
        replace(entries[1], scored_on="held-out"),
        replace(entries[1], results={}, diverged="loss is nan"),
        replace(entries[1], scale="imagenette"),
        *[replace(e, recipe=e.recipe | {"epochs": 51}) for e in entries[:3]],  # two recipes
        *[replace(e, images={"train": 24}) for e in entries[1:]],  # of three, one has no measure
        replace(entries[1], recipe=entries[1].recipe | {"method": {"name": "supervised"}}),
    ]
    left_out[-2] = replace(left_out[-2], label_free={"alpha": float("nan")}, curve={})
    older = replace(entries[0], label_free={}, curve={})
    found = list_regrets("cifar10", [*entries, *left_out, older])
    rows = {row.criterion: row for row in found}
    assert {*rows} == {"effective rank in training", "decay (best near 1)"} and len(found) == 2
    rank, alpha = rows["effective rank in training"], rows["decay (best near 1)"]
    assert (rank.network, rank.epochs, rank.recipes, alpha.recipes) == ("resnet18", 50, 3, 3)
    assert rank.regret == pytest.approx(80 - 76) and alpha.regret == pytest.approx(80 - 70)
    assert rank.random == pytest.approx(80 - 226 / 3)
    assert rank.correlation == pytest.approx(0.5) and alpha.correlation == pytest.approx(-1)
    assert "| `resnet18` | 50 | decay (best near 1) | 3 | 10.0 | 4.7 | -1.00 |" in render_regrets(
        "cifar10", entries
    )
    assert render_regrets("cifar10", entries, without=["moco"]) == "not run\n"
    assert render_regrets("cifar10", []) == "not run\n"
