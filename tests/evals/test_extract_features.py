import numpy as np
import pytest
import torch
from torch import nn

from selfsight.data import StreamedImages, open_source
from selfsight.errors import UserError
from selfsight.evals.extract_features import eval_mode, features
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.stratified_splits import Split
from tests.data.image_files import read_padded, write
from tests.evals.small_networks import TRANSFORM, Means, bright


def test_features_are_those_of_the_transformed_images_in_any_batch_size():
    images, backbone = bright(20), Means()
    expected = backbone.eval()(TRANSFORM(read_padded(images, torch.arange(20))[0]))
    backbone.train()
    for batch_size in (1, 7, 256):
        found = features(backbone, images, TRANSFORM, batch_size=batch_size)
        torch.testing.assert_close(found.h, expected.detach())
    assert found.y.tolist() == images.labels.tolist()
    assert found.index.tolist() == list(range(20))


def test_features_moved_to_the_host_in_parts_are_the_same(monkeypatch):
    monkeypatch.setattr("selfsight.evals.extract_features.MOVED_BATCHES", 2)
    images, backbone = bright(20), Means()
    expected = features(backbone, images, TRANSFORM, batch_size=3)
    found = features(backbone, images, TRANSFORM, batch_size=3, on_host=True)
    assert torch.equal(found.h, expected.h)


def test_features_of_chosen_images_come_in_the_order_asked_for():
    images, backbone = bright(20), Means()
    chosen = torch.tensor([7, 3, 11])
    found = features(backbone, images, TRANSFORM, index=chosen)
    torch.testing.assert_close(found.h, features(backbone, images, TRANSFORM).h[chosen])
    assert found.index.tolist() == [7, 3, 11]
    assert found.y.tolist() == images.labels[chosen].tolist()


def test_looking_changes_nothing_and_leaves_no_graph():
    backbone = Means()
    backbone.norm.eval()  # a part that its owner keeps frozen
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    found = features(backbone, bright(20), TRANSFORM)
    assert backbone.training
    assert not backbone.norm.training
    assert not found.h.requires_grad
    assert not found.h.is_inference()  # a probe trains on it
    for name, value in backbone.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def test_modes_come_back_after_an_error():
    backbone = Means()
    broken = nn.Sequential(backbone, nn.Linear(5, 5))
    with pytest.raises(RuntimeError, match="shapes"), eval_mode(broken):
        broken(torch.zeros(2, 3, 4, 4))
    assert backbone.training
    assert backbone.norm.training


def test_features_are_at_least_float32():
    assert features(Means().double(), bright(4), TRANSFORM).h.dtype == torch.float64
    assert features(Means().bfloat16(), bright(4), TRANSFORM).h.dtype == torch.float32
    linear = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
    cast = features(linear, bright(4), TRANSFORM, autocast=torch.bfloat16).h
    plain = features(linear, bright(4), TRANSFORM).h
    assert cast.dtype == torch.float32
    torch.testing.assert_close(cast, plain, rtol=0.05, atol=0.05)
    assert not torch.equal(cast, plain)


def test_images_without_labels_give_features_without_labels():
    assert features(Means(), bright(6, labeled=False), TRANSFORM).y is None


def test_classes_are_matched_by_name_and_not_by_number():
    train = bright(30)
    test = bright(30)
    test.class_names = ("class 2", "class 0", "class 1")
    _, found = LabeledData(train=train, test=test, transform=TRANSFORM).features(Means())
    assert found.y.tolist() == [[2, 0, 1][y] for y in test.labels.tolist()]


def test_a_split_takes_both_sides_from_one_set():
    split = Split(torch.tensor([0, 1, 2, 5]), torch.tensor([3, 4]))
    train, test = LabeledData(train=bright(6), transform=TRANSFORM, split=split).features(Means())
    assert train.index.tolist() == [0, 1, 2, 5]
    assert test.index.tolist() == [3, 4]
    assert test.y.tolist() == [0, 1]


def test_mistakes_are_told_before_any_work():
    with pytest.raises(UserError, match="training images have no labels"):
        LabeledData(train=bright(labeled=False), transform=TRANSFORM)
    with pytest.raises(UserError, match="test images have no labels"):
        LabeledData(train=bright(), test=bright(labeled=False), transform=TRANSFORM)
    with pytest.raises(UserError, match=r'"class 3".*Did you mean "class'):
        LabeledData(train=bright(), test=bright(classes=4), transform=TRANSFORM)
    split = Split(torch.tensor([0]), torch.tensor([1]))
    with pytest.raises(UserError, match="not both"):
        LabeledData(train=bright(), test=bright(), split=split, transform=TRANSFORM)
    hidden = bright(6)
    hidden.labels.fill_(-1)
    with pytest.raises(UserError, match="below 0"):
        LabeledData(train=bright(), test=hidden, transform=TRANSFORM)


def test_a_network_for_images_of_another_size_is_an_error():
    other = nn.Sequential(nn.Flatten(), nn.Linear(10, 4))
    with pytest.raises(UserError, match="cannot encode images of 8 x 8 with 3 channels"):
        features(other, bright(4), TRANSFORM)
    with pytest.raises(UserError, match="cannot encode images of 8 x 8 with 3 channels"):
        features(Means(channels=1), bright(4), TRANSFORM)
    with pytest.raises(UserError, match="expected is one row of"):
        features(nn.Conv2d(3, 4, 1), bright(4), TRANSFORM)


def test_test_labels_beyond_the_training_labels_are_an_error():
    train, test = bright(30), bright(30, classes=5)
    train.class_names = test.class_names = ()
    with pytest.raises(UserError, match="labels up to 4, but the training images only up to 2"):
        LabeledData(train=train, test=test, transform=TRANSFORM)


def test_an_empty_side_of_a_split_is_an_error():
    none = torch.tensor([], dtype=torch.long)
    for split, side in (
        (Split(none, torch.tensor([1])), "training"),
        (Split(torch.tensor([1]), none), "test"),
    ):
        with pytest.raises(UserError, match=f"no {side} images"):
            LabeledData(train=bright(6), transform=TRANSFORM, split=split)


def test_classes_in_only_one_of_the_sets_are_noted():
    both = LabeledData(train=bright(30), test=bright(30), transform=TRANSFORM)
    assert both.notes == ()
    few = both.with_subset(torch.tensor([0, 3]))
    assert few.notes == (
        '2 classes ("class 1", "class 2") are in the test set but not in the training set, '
        "and never predicted.",
    )
    seen = LabeledData(train=bright(30), test=bright(2), transform=TRANSFORM).notes
    assert seen == ('1 class ("class 2") is in the training set but not in the test set.',)


def shared_features():
    found = features(Means(), bright(23), TRANSFORM, batch_size=4, distributed=True)
    few = features(Means(), bright(3), TRANSFORM, batch_size=4, distributed=True)
    return found.h, found.index, few.h


def test_two_processes_compute_bit_equal_features(two_processes):
    expected = shared_features()
    assert len(expected[0]) == 23
    for found in two_processes(shared_features):
        for mine, theirs in zip(found, expected, strict=True):
            assert torch.equal(mine, theirs)


def test_an_image_of_a_stream_that_cannot_be_read_has_no_feature(tmp_path):
    for i in range(6):
        write(tmp_path / "ab"[i % 2] / f"{i}.png", np.full((8, 8, 3), 40 * i, np.uint8))
    (tmp_path / "b" / "3.png").write_bytes(b"broken")
    images = StreamedImages(open_source(tmp_path, labels=True), store_size=8, channels=3)
    found = features(Means(), images, TRANSFORM, batch_size=2)
    names = [images.names[i] for i in found.index.tolist()]
    assert "b/3.png" not in names and len(found.h) == len(found.y) == len(names) == 5
    order = found.h[:, 0].argsort().tolist()  # brighter images have larger means
    assert [names[i][2] for i in order] == ["0", "1", "2", "4", "5"]
