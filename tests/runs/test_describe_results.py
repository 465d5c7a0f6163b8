import pytest

from selfsight.runs.describe_results import describe_results

GRIDS = {"lrs": [0.1, 1.0], "weight_decays": [0.0, 1e-3, 1e-2]}


@pytest.mark.parametrize(
    ("lr", "decay", "sentences"),
    [
        (0.1, 1e-3, ["lr 0.1 is the lowest of the 2 that were tried; a lower"]),
        (1.0, 0.0, ["lr 1 is the highest of the 2 that were tried; a higher"]),
        (0.5, 1e-2, ["weight decay 0.01 is the highest of the 3 that were tried; a higher"]),
        (0.5, 0.0, []),  # there is no weight decay below 0
    ],
)
def test_a_winner_at_the_end_of_the_grid_is_said(lr, decay, sentences):
    result = {"lr": lr, "weight_decay": decay, "held_out_accuracy": 0.5, "settings": GRIDS}
    assert [note for note in describe_results({"p": result}) if "tried" in note] == [
        f"p: {sentence} one may be better." for sentence in sentences
    ]


def test_a_grid_of_one_value_has_no_end():
    result = {"weight_decay": 1e-3, "settings": {"weight_decays": [1e-3]}}
    assert describe_results({"linear": result}) == [
        "linear: selected weight decay 0.001 (the only choice)."
    ]
