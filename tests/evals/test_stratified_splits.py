import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsight.errors import UserError
from selfsight.evals.stratified_splits import load_or_create_split, stratified
from tests.evals.small_networks import bright, from_pixels


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(2, 40), min_size=1, max_size=6),
    share=st.floats(0.05, 0.5),
    seed=st.integers(0, 99),
)
def test_every_class_gives_its_share_to_both_sides(sizes, share, seed):
    labels = torch.cat([torch.full((n,), c) for c, n in enumerate(sizes)])
    split = stratified(labels, test_share=share, seed=seed)
    assert sorted([*split.train.tolist(), *split.test.tolist()]) == list(range(len(labels)))
    for c, n in enumerate(sizes):
        tested = int((labels[split.test] == c).sum())
        assert abs(tested - share * n) <= 1
        assert 1 <= tested <= n - 1
    assert split.notes == ()


def test_the_seed_decides():
    labels = torch.arange(100) % 5
    assert torch.equal(stratified(labels, seed=1).test, stratified(labels, seed=1).test)
    assert not torch.equal(stratified(labels, seed=1).test, stratified(labels, seed=2).test)


def test_a_class_with_one_image_is_learned_from_and_named():
    labels = torch.tensor([0, 0, 0, 1, 2, 2])
    split = stratified(labels, class_names=("cat", "emu", "dog"))
    assert 3 in split.train.tolist()
    assert len(split.notes) == 1
    assert '"emu"' in split.notes[0]
    assert "single image" in split.notes[0]


def test_classes_of_one_image_only_are_refused():
    with pytest.raises(UserError, match="None of the 4 labeled images"):
        stratified(torch.arange(4))


def test_a_split_is_made_once_and_read_again(tmp_path):
    images = bright(30)
    first = load_or_create_split(tmp_path, images)
    (file,) = tmp_path.iterdir()
    kept = json.loads(file.read_text())
    assert kept["train"] == first.train.tolist()
    # What the file says holds, whatever would be drawn today.
    kept["train"], kept["test"] = list(range(20)), list(range(20, 30))
    file.write_text(json.dumps(kept))
    again = load_or_create_split(tmp_path, images)
    assert again.test.tolist() == list(range(20, 30))


@pytest.mark.parametrize("side", ["train", "test"])
def test_a_saved_split_without_images_on_one_side_is_damaged(tmp_path, side):
    load_or_create_split(tmp_path, bright(30))
    (file,) = tmp_path.iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {side: []}))
    with pytest.raises(UserError, match=f"{file.name} is damaged: {side} holds no image"):
        load_or_create_split(tmp_path, bright(30))


def test_other_images_get_a_split_of_their_own(tmp_path):
    load_or_create_split(tmp_path, bright(30))
    load_or_create_split(tmp_path, bright(33))
    load_or_create_split(tmp_path, bright(30, classes=2))  # the same names with other labels
    assert len(list(tmp_path.iterdir())) == 3


def test_another_seed_gives_another_split(tmp_path):
    one, other = (load_or_create_split(tmp_path, bright(30), seed=seed) for seed in (0, 1))
    assert len(list(tmp_path.iterdir())) == 2
    assert one.test.tolist() != other.test.tolist()


def test_images_without_labels_are_refused(tmp_path):
    with pytest.raises(UserError, match="no labels"):
        load_or_create_split(tmp_path, from_pixels(torch.zeros(3, 1, 2, 2, dtype=torch.uint8)))
