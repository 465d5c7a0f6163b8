"""Which checkpoint, and the words that go with it."""

import math

import pytest
import torch

from selfsight.errors import UserError
from selfsight.evals.feature_statistics import decay, effective_rank, eigenvalues, lidar
from selfsight.evals.select_checkpoint import select_checkpoint, select_run
from selfsight.run_files.run_folder import Run


def record(lidar, effective_rank, alpha):
    return {"lidar": float(lidar), "effective_rank": float(effective_rank), "alpha": alpha}


def test_the_one_that_is_best_by_all_measures_is_chosen():
    records = [record(10, 20, 3.0), record(30, 40, 1.1), record(20, 30, 2.0)]
    found = select_checkpoint(records, ["epoch 1", "epoch 2", "epoch 3"])
    assert (found.index, found.name) == (1, "epoch 2")
    assert set(found.ranks.values()) == {1}
    assert found.sentence.startswith("epoch 2 of 3: LiDAR 30, the best") and (
        "disagree" not in found.sentence
    )


def test_where_measures_disagree_the_sentence_says_who_else():
    records = [record(10, 50, 1.0), record(30, 40, 1.1), record(20, 30, 2.0)]
    found = select_checkpoint(records)
    assert found.index == 1  # places 1, 2, 2 against 3, 1, 1: LiDAR decides
    assert "effective rank 40, rank 2" in found.sentence
    assert "by effective rank alone it would be checkpoint 1" in found.sentence


def test_alignment_and_uniformity_count_together():
    """A point that all features fall into is aligned, and no better for it."""
    spread, point = {"alignment": 0.3, "uniformity": -3.0}, {"alignment": 0.0, "uniformity": 0.0}
    found = select_checkpoint([point, spread])
    assert found.index == 1 and "alignment + uniformity (best low) -2.7" in found.sentence
    with pytest.raises(UserError, match="no criterion: expected"):
        select_checkpoint([{"alignment": 0.3}])


def test_runs_are_chosen_by_what_their_folders_hold(tmp_path):
    runs = [Run(tmp_path / name) for name in ("a", "b")]
    for run, value in zip(runs, (5.0, 7.0), strict=True):
        run.write_result("analysis", {"lidar": value, "settings": {"seed": 0}})
    found = select_run(runs)
    assert found.index == 1 and found.name.endswith("/b")
    with pytest.raises(UserError, match="--protocol analysis"):
        select_run([*runs, Run(tmp_path / "c")])


def test_of_equals_the_later_is_chosen():
    assert select_checkpoint([record(10, 20, 2.0)] * 3).index == 2


def test_lidar_breaks_a_tie_of_places():
    assert (
        select_checkpoint(
            [{"lidar": 5.0, "effective_rank": 9.0}, {"lidar": 6.0, "effective_rank": 8.0}]
        ).index
        == 1
    )


def test_alpha_is_best_at_one_from_either_side():
    assert select_checkpoint([{"alpha": 0.4}, {"alpha": 1.3}, {"alpha": 2.0}]).index == 1
    assert select_checkpoint([{"alpha": 0.9}, {"alpha": 1.3}]).index == 0


@pytest.mark.parametrize("broken", [record(99, 1.2, 1.0), record(math.nan, 50, 1.0)])
def test_a_collapsed_checkpoint_is_left_out_however_good_it_looks(broken):
    found = select_checkpoint([record(10, 20, 2.0), broken])
    assert found.index == 0
    assert "not finite: checkpoint 2" in found.sentence


@pytest.mark.parametrize(("rank", "index"), [(0.09, 0), (0.11, 1)])
def test_a_rank_below_a_tenth_of_the_best_is_a_collapse(rank, index):
    records = [record(10, 100, 2.0), record(30, 100 * rank, 1.0)]  # better by LiDAR and decay
    assert select_checkpoint(records).index == index


def test_the_projector_s_numbers_may_be_asked_for():
    records = [{"lidar": 1.0, "projector_lidar": 9.0}, {"lidar": 2.0, "projector_lidar": 3.0}]
    assert select_checkpoint(records, layer="projector").index == 0
    assert select_checkpoint(records).index == 1
    records[1]["projector_lidar"] = None  # as a number that is not finite is written
    assert select_checkpoint(records, layer="projector").index == 0
    assert select_checkpoint(records).index == 1


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "no criterion: expected"),
        ([{"loss": 1.0}], "no criterion: expected"),
        ([{"lidar": math.inf}], "Every checkpoint has collapsed"),
        ([{"lidar": 3.0}, {"alpha": 1.0}], "no criterion in common"),
    ],
)
def test_what_cannot_be_chosen_from_is_a_sentence(records, message):
    with pytest.raises(UserError, match=message):
        select_checkpoint(records)


def test_features_that_see_more_of_the_images_are_chosen():
    """Made features: what differs between images in 2, 20 or 1 directions; the rest is noise."""
    g = torch.Generator().manual_seed(0)

    def measured(directions):
        signal = (
            torch.randn(300, 1, directions, generator=g) * torch.arange(1, directions + 1) ** -0.5
        )
        views = 0.05 * torch.randn(300, 4, 32, generator=g)
        views[..., :directions] += signal
        h = views[:, 0]
        return {
            "lidar": lidar(views).item(),
            "effective_rank": effective_rank(h).item(),
            "alpha": decay(eigenvalues(h)).item(),
        }

    assert select_checkpoint([measured(2), measured(20), measured(1)]).index == 1
