"""Runs are compared by their results: pairs, seeds, what differs, and the table."""

import json

import numpy as np
import pytest
import torch

from selfsight import api
from selfsight.errors import UserError
from selfsight.evals.prediction_scores import PerImage, score_per_image, score_predictions
from selfsight.run_files.run_folder import Run
from selfsight.runs.build_result import collect_arrays, collect_scores
from selfsight.runs.compare_runs import compare, format_number, format_records, tabulate_seeds


def write_scores(folder, correct, *, fingerprint="same", seed=None, name="linear"):
    """The result of one encoder, as `evaluate` writes it."""
    scores = {
        "trained": score_predictions(torch.zeros(len(correct)).long(), {"accuracy": 1 - correct})
    }
    run = Run(folder)
    run.write_result(name, collect_scores(scores, ["only", "other"]))
    run.write_arrays(name, collect_arrays(scores, fingerprint))
    if seed is not None:
        recipe = {
            "method": {"name": "moco"},
            "epochs": 5,
            "seed": seed,
            "reasons": {"a": f"{seed}"},
            "changed": ["seed"] if seed else [],
        }
        run.recipe_path.write_text(json.dumps(recipe))
    return run


def test_runs_are_paired_on_the_same_images_only(tmp_path):
    correct = (torch.arange(500) % 3 > 0).long()
    better = correct.clone()
    better[:60] = 1  # 20 of them were wrong
    low = write_scores(tmp_path / "low", correct)
    high = write_scores(tmp_path / "high", better)
    rows, notes, _ = compare([low, high])
    assert notes == [
        "linear: high is 4.0 points above low (95 % interval +2.4 to +5.8, 500 images)."
    ]
    assert rows[0]["linear_low"] < rows[0]["linear"] < rows[0]["linear_high"]
    assert format_records(rows)[0]["linear"] == "66.6% (62.4-70.8)"
    other = write_scores(tmp_path / "other", better[:400], fingerprint="other")
    (note,) = compare([low, other])[1]
    assert "other and low are indistinguishable" in note and "unpaired" in note
    assert "these 400 images" in note  # the smaller number


def test_runs_whose_folders_have_one_name_are_told_apart_by_their_paths(tmp_path):
    folders = [tmp_path / parent / "moco" for parent in "ab"]
    counts = zip(folders, (60, 70), strict=True)
    runs = [write_scores(f, (torch.arange(100) < right).long()) for f, right in counts]
    rows = compare(runs).records
    assert [row["run"] for row in rows] == list(map(str, folders))
    assert [row["linear"] for row in rows] == [0.6, 0.7]


def test_numbers_that_are_no_means_are_paired_by_their_resamples(tmp_path):
    rows = np.random.default_rng(0).normal(0.5, 0.1, 1001) + np.array([[0.1], [0.0]])
    runs = []
    for name, replicates in zip("ab", rows, strict=True):
        per_image = PerImage(n=70, values={}, replicates={"map": replicates})
        scores = {"trained": score_per_image(per_image)}
        runs.append(Run(tmp_path / name))
        runs[-1].write_result("svm", collect_scores(scores))
        runs[-1].write_arrays("svm", collect_arrays(scores, "same"))
    assert compare(runs)[1] == [
        "svm map: a is 10.0 points above b (95 % interval +10.0 to +10.0, 70 images)."
    ]


def test_seeds_of_one_recipe_have_a_spread_of_their_own(tmp_path):
    right = [60, 70, 80]
    runs = [
        write_scores(tmp_path / f"moco-seed{i}", (torch.arange(100) < n).long(), seed=i)
        for i, n in enumerate(right)
    ]
    rows, notes, spreads = compare(runs)
    for row in rows:  # --json prints them
        numbers = [row[f"linear_seeds{end}"] for end in ("", "_mean", "_std")]
        assert numbers == pytest.approx([3, np.mean(right) / 100, np.std(right, ddof=1) / 100])
    assert list(format_records(rows)[0]) == ["run", "linear"]
    (line,) = tabulate_seeds(spreads)
    assert list(line.values()) == ["linear", "3", "70.0%", "10.0 points", "60.0% to 80.0%"]
    assert spreads[0].name == "moco-*"
    assert notes[-1].startswith("The standard deviation over seeds shows how much")
    rows, others, _ = compare(runs[:1])
    assert not any("seeds" in word for word in (*others, *rows[0]))
    runs.append(write_scores(tmp_path / "again", (torch.arange(100) < 9).long(), seed=2))
    assert compare(runs).spreads[0].values == spreads[0].values  # the same seed again: not counted


def test_every_k_has_a_spread_over_seeds(tmp_path):
    recipe = json.dumps({"seed": 0, "epochs": 1})
    runs = [Run(tmp_path / f"moco-seed{seed}") for seed in range(2)]
    for seed, run in enumerate(runs):
        run.path.mkdir()
        run.recipe_path.write_text(recipe.replace('"seed": 0', f'"seed": {seed}'))
        found = {"accuracy_k20": 0.5 + seed / 10, "accuracy_k200": 0.4 + seed / 10}
        run.write_result("knn", found | {"settings": {}})
    lines = tabulate_seeds(compare(runs).spreads)
    assert [(line["measure"], line["mean"]) for line in lines] == [
        ("knn k20", "55.0%"),
        ("knn k200", "45.0%"),
    ]


def test_runs_of_other_tasks_are_neither_compared_nor_averaged(tmp_path):
    runs = [write_scores(tmp_path / str(i), torch.arange(100) % 2, seed=i) for i in range(2)]
    for run, count in zip(runs, (3, 6), strict=True):
        run.write_result("linear", run.result("linear") | {"settings": {"num_classes": count}})
    assert compare(runs)[1] == ["linear: num_classes differs between runs (3, 6)."]


def test_settings_that_differ_between_runs_are_named(tmp_path):
    for name, test in (("a", 100), ("b", 200)):
        settings = {"test": test, "label_column": f"label_{name}"}
        Run(tmp_path / name).write_result("linear", {"accuracy": 0.9, "settings": settings})
    _, notes, _ = compare([Run(tmp_path / "a"), Run(tmp_path / "b")])
    assert notes == [
        "linear: label_column differs between runs (label_a, label_b).",
        "linear: test differs between runs (100, 200).",
    ]


def test_the_table_has_the_analyzes_and_says_which_is_best_without_labels(tmp_path):
    for name, rank in (("a", 10.0), ("b", 20.0)):
        numbers = {"effective_rank": rank, "lidar": rank, "alpha": 1.0}
        settings = {"view_settings": [{"size": rank}]}
        Run(tmp_path / name).write_result("analysis", {**numbers, "settings": settings})
    rows, notes, _ = compare([Run(tmp_path / "a"), Run(tmp_path / "b")])
    assert [row["analysis lidar"] for row in rows] == [10.0, 20.0]
    assert notes[0] == "analysis: view_settings differs between runs."
    assert notes[1].startswith(f"Best without labels: {tmp_path / 'b'} of 2")


def test_a_table_has_a_line_per_run_if_there_are_more_runs_than_measures():
    many = [{"run": str(i), "knn": 0.5} for i in range(5)]
    assert format_records(many)[0] == {"run": "0", "knn": "50.0%"}
    two = [{"run": "a", "knn": 0.5, "rank": 12.5}, {"run": "b", "knn": None, "rank": 3.0}]
    assert format_records(two) == [
        {"measure": "knn", "a": "50.0%", "b": ""},
        {"measure": "rank", "a": "12.5", "b": "3"},
    ]
    assert format_number(0.031, "alignment") == "0.031"


def test_no_run_is_told():
    with pytest.raises(UserError, match="no run to compare"):
        api.compare([])
