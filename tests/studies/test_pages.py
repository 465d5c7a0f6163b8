"""Tables and plots of the pages: what the ledger says, and nothing else."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from docs.fill_results import PLOTS, ROOT, draw_plots, fill, list_pages

from selfsight.cli.print_catalog import print_study
from selfsight.studies import STUDIES
from selfsight.studies.ledger import read_ledger
from selfsight.studies.ledger_plots import draw_curves, draw_time, draw_varied
from selfsight.studies.rank_runs import list_regrets
from selfsight.studies.result_tables import (
    list_results,
    render_regrets,
    render_results,
    render_short,
)
from tests.studies.test_train_arms import entry_of, jobs_of

RESULTS = ROOT / "docs" / "results.md"
EQCO = STUDIES["eqco_negatives"]


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
    wrong = re.sub(r"\| `methods.*?`|(?<=\| )not run", "99.9", text, count=1)
    wrong = wrong if wrong != text else text.replace("| 200 |", "| 201 |", 1)
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
    assert "2 of 18 arms were run, 4 runs in all; CPU; code: abc." in text
    assert "| MoCo v2: at K = 16, EqCo is better than the plain loss. | **not run** | - |" in text
    assert render_short(EQCO, "cifar10", entries, ["cifar10_v2_k16"]).count("\n") == 3


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
    assert draw_varied(EQCO, "cifar10", entries[:1]) is None
    svg = ElementTree.fromstring(draw_varied(EQCO, "cifar10", entries))
    points = [c for c in svg.iter("{http://www.w3.org/2000/svg}circle") if c.get("r") == "3.5"]
    ours, published = (
        [c for c in points if (c.get("fill") == "#ffffff") == hollow] for hollow in (False, True)
    )
    assert len(ours) == 3
    assert len(published) == 4  # K of 256, 1024, 4096 and 16384, of MoCo v2 without EqCo
    heights = [float(c.get("cy")) for c in ours]
    assert heights == sorted(heights, reverse=True)  # accuracy grows with K, and y points down
    assert draw_time(EQCO, "cifar10", entries).count('r="3.5"') == 3


def test_curves_are_those_of_the_arms_that_claims_compare():
    curve = {
        "epoch": [1.0, 2.0, 3.0],
        "online_knn": [0.2, 0.3, None],
        "online_knn_dips": [0.0, 2.0],
    }
    arms = ("cifar10_v2_k16", "cifar10_v2_eqco_k16", "cifar10_v2_k64")  # the last is in no claim
    entries = [replace(e, curve=curve) for arm in arms for e in entries_of(arm, 70.0)]
    svg = draw_curves(EQCO, "cifar10", entries)
    assert svg.count("<polyline") == 2 and "v2_k64" not in svg  # and no bound was logged
    points = re.findall(r'points="(.*?)"', svg)
    assert [len(line.split()) for line in points] == [2, 2]
    text = render_results(EQCO, "cifar10", entries)
    assert "| memory | dips |" in text and "| - | 2 |" in text


def test_regret_is_the_best_accuracy_minus_that_of_the_run_that_a_criterion_chooses():
    accuracies, alphas, ranks = (70.0, 80.0, 76.0), (1.0, 2.0, 0.9), (5.0, 9.0, 10.0)
    entries = [
        replace(
            entry,
            label_free={"alpha": alpha},
            curve={"effective_rank": [99.0 - rank, rank, None]},
        )
        for entry, alpha, rank in zip(
            entries_of("cifar10_v2_k16", *accuracies), alphas, ranks, strict=True
        )
    ]
    left_out = [
        replace(entries[1], quick=True),
        replace(entries[1], scored_on="held-out"),
        replace(entries[1], results={}, diverged="loss is nan"),
        replace(entries[1], scale="imagenette"),
        replace(entries[1], recipe=entries[1].recipe | {"epochs": 51}),  # the only one
    ]
    older = replace(entries[0], label_free={}, curve={})
    rows = {row.criterion: row for row in list_regrets("cifar10", [*entries, *left_out, older])}
    assert {*rows} == {"effective rank in training", "decay (best near 1)"}
    rank, alpha = rows["effective rank in training"], rows["decay (best near 1)"]
    assert (rank.network, rank.epochs, rank.runs, alpha.runs) == ("resnet18", 50, 3, 3)
    assert rank.regret == pytest.approx(80 - 76) and alpha.regret == pytest.approx(80 - 70)
    assert rank.random == pytest.approx(80 - 226 / 3)
    assert "| `resnet18` | 50 | decay (best near 1) | 3 | 10.0 | 4.7 |" in render_regrets(
        "cifar10", entries
    )
    assert render_regrets("cifar10", []) == "not run\n"
