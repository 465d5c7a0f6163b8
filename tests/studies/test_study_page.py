"""The page of a study says what the ledger says, and opens without a network."""

import re
from dataclasses import replace

import pytest

from selfsight.__main__ import main
from selfsight.options.study_options import STUDY_DEFAULTS
from selfsight.studies import STUDIES
from selfsight.studies.plan_jobs import plan_jobs
from selfsight.studies.study_page import build_study_page
from tests.studies.test_pages import entries_of
from tests.studies.test_train_arms import entry_of

EQCO = STUDIES["eqco_negatives"]


def test_the_page_has_verdicts_figures_and_runs():
    entries = [
        *entries_of("cifar10_v2_k4096", 80.0, 81.0, 80.5),
        *entries_of("cifar10_v2_k16", 70.0, 71.0, 70.5),
    ]
    page = build_study_page(EQCO, "cifar10", entries)
    claim = "MoCo v2: without EqCo, K = 16 is worse than K = 4096."
    assert f"<td>{claim}</td><td>holds</td><td>+10.0 " in page
    assert page.count("<svg") == 3 and "80.5 ± 0.5" in page  # the mark of the frame, and figures
    assert "23 of 25 arms were not run" in page
    assert not re.search(r"\{\{|(src|href)=.?http", page)


def test_the_page_explains_differences_bars_bound_dips_and_seeds():
    curve = {"epoch": [1.0, 2.0], "online_knn": [0.2, 0.3], "information_bound": [1.0, 2.0]}
    arms = ("cifar10_v2_k4096", "cifar10_v2_k16")
    entries = [replace(e, curve=curve) for arm in arms for e in entries_of(arm, 80.0, 81.0)]
    page = build_study_page(EQCO, "cifar10", entries)
    for sentence in (
        "<b>Claim:</b> With EqCo&#x27;s margin",
        "<br> <b>Judged by:</b> For each method",
        "So a positive difference is in the direction of the claim.",
        "its 95 % interval over seeds",
        "its bar the standard deviation over seeds.",
        "a lower bound on the mutual information between two views",
        "Only the first seed of each arm",
        "Dips are measurements of",
    ):
        assert sentence in page


def test_variances_within_an_image_are_drawn_over_each_other():
    study, counts = STUDIES["jcl_multi_key"], [0] * 50
    counts[10] = 1000
    entries = []
    for arm in ("cifar10_jcl", "cifar10_moco_v2"):
        (job,) = plan_jobs([study], replace(STUDY_DEFAULTS, arms=[arm]), lambda recipe: recipe)
        version = {"commit": "abc"}
        entries.append(entry_of(job, view_variance=counts, version=version))
    page = build_study_page(study, "cifar10", entries)
    assert "first seed: share of images, %</title>" in page and "variance over views, %" in page
    without = build_study_page(study, "cifar10", [replace(e, view_variance=[]) for e in entries])
    assert "variance over views, %" not in without


def test_small_networks_are_not_drawn_beside_what_is_published_for_large_ones():
    methods, pages = STUDIES["methods"], {}
    for scale in ("cifar10", "small"):
        options = replace(STUDY_DEFAULTS, arms=("moco", "simclr"), scale=scale)
        jobs = plan_jobs([methods], options, lambda recipe: recipe)
        scores = {"knn_200": {"accuracy": 0.5, "low": 0.4, "high": 0.6}}
        results = {"knn": scores["knn_200"], "linear": scores["knn_200"]} | scores
        entries = [entry_of(job, results=results, version={"commit": "abc"}) for job in jobs]
        pages[scale] = build_study_page(methods, scale, entries)
    assert ">published</text>" in pages["cifar10"] and ">published</text>" not in pages["small"]
    assert "82.6 kNN (k = 200) on CIFAR-10" in pages["small"].replace("\u00a0", " ")


def test_memory_is_a_column_if_it_was_measured():
    entries = entries_of("cifar10_v2_k16", 70.0)
    assert "<th>memory</th>" not in build_study_page(EQCO, "cifar10", entries)
    entries = [replace(entries[0], peak_memory_gib=4.0)]
    assert "<th>memory</th>" in build_study_page(EQCO, "cifar10", entries)


def test_a_study_without_runs_says_so():
    page = build_study_page(EQCO, "cifar10", [])
    assert "No arm was run" in page and "Too few arms were run" in page


def test_the_command_writes_the_page(tmp_path, capsys, monkeypatch):
    page = tmp_path / "pages" / "jcl.html"
    monkeypatch.setattr("sys.argv", ["selfsight", "studies", "jcl_multi_key", "--page", str(page)])
    main()
    assert capsys.readouterr().out.strip() == str(page)
    assert "JCL beats MoCo v2." in page.read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nope"], 'There is no study "nope"'),
        (["swav_epochs"], "swav_epochs has no arms on cifar10. Give --scale imagenet."),
        ([], "none is named: selfsight studies NAME --page"),
        (["methods", "--ledger", "/nowhere"], "/nowhere"),
    ],
)
def test_a_study_that_has_no_such_page_is_told(words, sentence, tmp_path, capsys, monkeypatch):
    words = ["selfsight", "studies", *words, "--page", str(tmp_path / "page.html")]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and sentence in capsys.readouterr().err
