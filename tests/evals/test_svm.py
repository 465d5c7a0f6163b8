"""Average precision by hand, the machines against scikit-learn, and VOC's files."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from selfsight.backbones import BackboneConfig
from selfsight.data.eval_transform import EvalTransform
from selfsight.errors import UserError
from selfsight.evals import svm, transfer_settings
from selfsight.evals.bootstrap_intervals import RESAMPLES, replicate_interval, resampled_rows
from selfsight.evals.multilabel_ap import average_precision, resample_mean_average_precision
from selfsight.evals.multilabel_data import (
    MultilabelData,
    MultilabelFeatures,
    PooledMaps,
    as_multilabel,
    load_voc07,
    load_voc_split,
    one_hot,
    read_voc_labels,
    to_squares,
)
from selfsight.evals.stratified_splits import stratified
from selfsight.evals.svm import SVM, build_published_svm, normalize_rows
from tests.evals.small_networks import Means, bright, from_pixels, labeled

# scikit-learn is imported where it is used: two processes import this file too.


def present(*numbers):
    return np.array(numbers, bool)


SCORES = np.array([0.9, 0.8, 0.7, 0.6, 0.5])


def test_average_precision_of_a_hand_made_ranking():
    """Found at places 1, 3 and 4: precision 1, 2/3 and 3/4, of which deeper cuts lift the 2/3."""
    from sklearn.metrics import average_precision_score

    truth = present(1, 0, 1, 1, 0)
    assert average_precision(SCORES, truth) == pytest.approx((1 + 3 / 4 + 3 / 4) / 3)
    # Recalls 0 to 0.3 are reached at place 1, the others at place 3 or 4.
    assert average_precision(SCORES, truth, points="11") == pytest.approx((4 * 1 + 7 * 0.75) / 11)
    assert average_precision_score(truth, SCORES) == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)


def test_average_precision_of_a_perfect_and_of_the_worst_ranking():
    for points in ("all", "11"):
        assert average_precision(SCORES, present(1, 1, 0, 0, 0), points=points) == 1
        assert average_precision(SCORES, present(0, 0, 0, 0, 1), points=points) == pytest.approx(
            0.2
        )


def test_interpolated_precision_is_never_below_scikit_learn_s():
    from sklearn.metrics import average_precision_score

    g = np.random.default_rng(0)
    for _ in range(20):
        truth, scores = g.random(30) < 0.3, g.random(30)
        truth[0] = True
        assert average_precision(scores, truth) >= average_precision_score(truth, scores) - 1e-12


def test_a_tie_is_not_to_one_s_favor_and_order_does_not_matter():
    scores, truth = np.zeros(4), present(1, 0, 0, 0)
    found = [average_precision(scores, np.roll(truth, i)) for i in range(4)]
    assert found == [0.25] * 4


def made(n=120, d=6, seed=0):
    """Features and marks of three classes that overlap, none of them easy."""
    g = torch.Generator().manual_seed(seed)
    h = torch.randn(n, d, generator=g)
    y = (h[:, :3] + 0.8 * torch.randn(n, 3, generator=g) > 0.5).to(torch.int8)
    return MultilabelFeatures(h, y)


def machine(**settings):
    names = ("cat", "dog", "cow")
    blank = from_pixels(torch.zeros(120, 3, 2, 2, dtype=torch.uint8))
    train, test = made().y, made(seed=1).y
    data = MultilabelData(train=blank, train_y=train, test=blank, test_y=test, class_names=names)
    return SVM(**{"data": data, "costs": (0.1, 5.0), "workers": 1} | settings)


def test_scikit_learn_s_grid_search_chooses_and_scores_the_same():
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import LinearSVC

    train, test = made(), made(seed=1)
    found = machine().score(train, test)
    x, probes = ((m.h / (m.h.norm(dim=1, keepdim=True) + 1e-5)).double() for m in (train, test))
    expected, folds = [], []
    for c in range(3):
        linear_svm = LinearSVC(dual=True, class_weight={1: 2, 0: 1}, max_iter=2000, random_state=0)
        search = GridSearchCV(linear_svm, {"C": [0.1, 5.0]}, scoring="average_precision", cv=3)
        search.fit(x.numpy(), train.y[:, c].numpy())
        folds.append(search.best_score_)  # the mean over folds
        scores = search.decision_function(probes.numpy())
        expected.append(average_precision(scores, test.y[:, c].numpy() == 1))
    assert found["map"] == pytest.approx(np.mean(expected), abs=1e-3)
    assert found["fold_map"] == pytest.approx(np.mean(folds), abs=1e-3)
    assert [found[f"ap_{name}"] for name in ("cat", "dog", "cow")] == pytest.approx(
        expected, abs=1e-3
    )


def test_the_number_of_workers_does_not_change_a_bit():
    """Not even the scores of single images: liblinear's threads shared one random generator."""
    train, test = made(400, d=48), made(300, d=48, seed=1)
    scores = []
    for workers in (1, 2, 4):
        svm = machine(workers=workers)
        fits = svm._fit(normalize_rows(train.h), train.y, normalize_rows(test.h), [0, 1, 2])
        scores.append(np.stack([fit.scores for fit in fits]))
    for other in scores[1:]:
        np.testing.assert_array_equal(scores[0], other)


def test_the_interval_is_that_of_a_loop_over_resampled_images():
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(60, 3)).round(1)  # with ties
    present = generator.random((60, 3)) < [0.5, 0.2, 0.04]
    counted = generator.random((60, 3)) < 0.9
    found = resample_mean_average_precision(scores, present & counted, counted)
    for value, rows in zip(found[:, :200].T, next(resampled_rows(60)), strict=False):
        each, eleven = [], []
        for c in range(3):
            used = rows[counted[rows, c]]
            if present[used, c].any():
                ranked = (scores[used, c], present[used, c])
                each.append(average_precision(*ranked))
                eleven.append(average_precision(*ranked, points="11"))
        assert value == pytest.approx([np.mean(each), np.mean(eleven)])
    assert found.shape == (2, RESAMPLES)


def test_resamples_without_any_class_are_left_out_of_the_interval():
    present = np.arange(20)[:, None] == 3
    scores = np.random.default_rng(0).normal(size=(20, 1))
    found = resample_mean_average_precision(scores, present, np.ones_like(present))[0]
    assert 0.3 < np.isnan(found).mean() < 0.42  # (1 - 1 / 20) ** 20
    low, high = replicate_interval(float(np.nanmean(found)), found)[1:]
    assert 0 < low < high <= 1


def test_an_interval_contains_what_other_images_give_though_copies_raise_average_precision():
    generator = np.random.default_rng(0)
    present = generator.random((150, 100)) < 0.2

    def other_images():
        scores = 0.3 * present + generator.normal(size=present.shape)
        ranked = zip(scores.T, present.T, strict=True)
        return scores, float(np.mean([average_precision(*pair) for pair in ranked]))

    expected = np.mean([other_images()[1] for _ in range(10)])
    scores, value = other_images()
    drawn = resample_mean_average_precision(scores, present, np.ones_like(present))[0]
    low, high = replicate_interval(value, drawn)[1:]
    assert low < value < high and low < expected < high
    assert np.quantile(drawn, 0.025) > max(value, expected)  # the quantiles alone do not


def test_shuffled_marks_give_the_share_of_the_class():
    train, test = made(240), made(240, seed=1)
    shuffled = train._replace(
        y=train.y[torch.randperm(240, generator=torch.Generator().manual_seed(0))]
    )
    found = machine().score(shuffled, test)
    share = test.y.double().mean(dim=0).mean().item()
    assert found["map"] == pytest.approx(share, abs=0.12)
    assert machine().score(train, test)["map"] > share + 0.3


def test_what_is_not_to_be_counted_is_not_scored(monkeypatch):
    counted, resample = [], resample_mean_average_precision

    def resample_and_tell(*arrays):
        counted.append(arrays[2])
        return resample(*arrays)

    monkeypatch.setattr(svm, "resample_mean_average_precision", resample_and_tell)
    train, test = made(), made(seed=1)
    wrong = test.y.clone()
    wrong[:30] = 1 - wrong[:30]
    marked = wrong.clone()
    marked[:30] = -1
    rest = machine().score(train, MultilabelFeatures(test.h[30:], test.y[30:]))
    found = machine().score(train, MultilabelFeatures(test.h, marked))
    assert [found[k] for k in ("map", "map_11_point", "ap_cat")] == [
        rest[k] for k in ("map", "map_11_point", "ap_cat")
    ]
    assert machine().score(train, MultilabelFeatures(test.h, wrong))["map"] < rest["map"]
    assert counted[0].all() and (counted[1] == (marked != -1).numpy()).all()  # of the interval


def test_separable_single_labels_give_one():
    data = labeled(bright(60), test=bright(30, seed=1))
    found = SVM(data=data, costs=(10.0, 1000.0), workers=1)(Means())
    assert found["map"] == pytest.approx(1) and found["classes"] == 3
    assert {"ap_class 0", "ap_class 1", "ap_class 2"} <= set(found)


def test_a_class_that_cannot_be_scored_is_left_out_with_a_sentence():
    train, test = made(), made(seed=1)
    train.y[:, 0] = 0
    train.y[:2, 0] = 1
    test.y[:, 1] = 0
    svm = machine(data=replace(machine().data, train_y=train.y, test_y=test.y))
    found = svm.score(train, test)
    assert found["classes"] == 1 and "ap_cow" in found and "ap_cat" not in found
    few, none = svm.notes()
    assert 'Class "cat" is left out: 2' in few and 'Class "dog" is left out: no test image' in none
    test.y[:, 2] = 0
    with pytest.raises(UserError, match="No class can be scored"):
        svm.score(train, test)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"costs": ()}, "costs is empty"),
        ({"costs": (math.nan,)}, "costs is"),
        ({"folds": 1}, "folds is 1"),
    ],
)
def test_wrong_settings_are_a_sentence(settings, message):
    with pytest.raises(UserError, match=message):
        machine(**settings)


def test_single_labels_as_marks():
    assert one_hot(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_a_resnet_s_maps_are_pooled_to_two_by_two():
    network = BackboneConfig(name="resnet10_narrow", stem="imagenet").build().eval()
    x = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    maps = network.forward_to_stage(x, 4)
    assert maps.shape[2:] == (7, 7)
    rows = PooledMaps(network)(x).view(128, 2, 2)
    torch.testing.assert_close(rows[:, 0, 1], maps[0, :, :6, 1:].mean((1, 2)))


def test_images_are_squashed_whole():
    """A wide image, left dark and right bright, stays so in a square."""
    wide = torch.zeros(3, 4, 40, dtype=torch.uint8)
    wide[:, :, 20:] = 255
    tall = wide.transpose(1, 2)
    data = MultilabelData(
        train=from_pixels([wide, tall]),
        train_y=torch.ones(2, 1, dtype=torch.int8),
        test=from_pixels([wide]),
        test_y=torch.ones(1, 1, dtype=torch.int8),
        class_names=("a",),
        transform=EvalTransform(size=8, resize=8, keep_aspect=False, mean=(0.0,), std=(1.0,)),
    )
    (train, _), (test, _) = data.features(nn.Flatten())
    x = train.view(2, 3, 8, 8)
    torch.testing.assert_close(x[0, :, :, :3], torch.zeros(3, 8, 3))
    torch.testing.assert_close(x[0, :, :, 5:], torch.ones(3, 8, 3))
    torch.testing.assert_close(x[1], x[0].transpose(1, 2))
    torch.testing.assert_close(test[0], train[0])


def test_a_split_of_single_labels_can_be_seen_as_voc07_s_images_are():
    images = bright(60)
    split = stratified(images.labels, seed=3)
    data = labeled(images, split=split)
    svm = build_published_svm("svm.voc07", data)
    assert svm.data.train_index.tolist() == split.train.tolist()
    found = replace(svm, costs=(10.0, 1000.0), workers=1)(Means())
    assert found["map"] == pytest.approx(1)
    assert build_published_svm("svm", data).data is data
    with pytest.raises(UserError, match="not trained on"):
        build_published_svm("svm.voc07", labeled(images))


def in_processes(count):
    data = labeled(bright(count), test=bright(7, seed=1), batch_size=4, distributed=True)
    (train, _), (test, _) = as_multilabel(data).features(nn.Flatten())
    return train, test


@pytest.mark.slow
def test_two_processes_get_the_features_of_one(two_processes):
    alone = in_processes(9)
    for found in two_processes(in_processes, 9):
        for here, there in zip(alone, found, strict=True):
            torch.testing.assert_close(here, there)


def test_marks_must_fit_the_images():
    blank = from_pixels(torch.zeros(3, 3, 2, 2, dtype=torch.uint8))
    y = torch.ones(2, 1, dtype=torch.int8)
    with pytest.raises(
        UserError, match="3 training images and 1 classes, but the labels have shape"
    ):
        MultilabelData(train=blank, train_y=y, test=blank, test_y=y, class_names=("a",))


ANNOTATION = """<annotation><size><width>8</width><height>6</height></size>{}</annotation>"""
THING = "<object><name>{}</name><difficult>{}</difficult></object>"


@pytest.fixture
def devkit(tmp_path):
    """Three images: a cat and a hard dog; a dog twice, once hard; nothing."""
    for folder in ("ImageSets/Main", "JPEGImages", "Annotations"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ImageSets/Main/trainval.txt").write_text("001\n002\n003\n")
    things = {
        "001": THING.format("cat", 0) + THING.format("dog", 1),
        "002": THING.format("dog", 1) + THING.format("dog", 0),
        "003": "",
    }
    for i, (name, words) in enumerate(things.items()):
        (tmp_path / f"Annotations/{name}.xml").write_text(ANNOTATION.format(words))
        pixels = np.full((6, 8, 3), 40 * i, np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"JPEGImages/{name}.jpg")
    return tmp_path


EXPECTED = [[1, -1], [0, 1], [0, 0]]


def test_voc_s_annotations_and_its_lists_say_the_same(devkit):
    names, marks, classes = read_voc_labels(devkit, "trainval")
    assert (names, classes) == (["001", "002", "003"], ("cat", "dog"))
    assert marks.tolist() == EXPECTED
    lists = devkit / "ImageSets/Main"
    (lists / "cat_trainval.txt").write_text("001  1\n002 -1\n003 -1\n")
    (lists / "dog_trainval.txt").write_text("001  0\n002  1\n003 -1\n")
    for annotation in (devkit / "Annotations").iterdir():
        annotation.unlink()
    assert read_voc_labels(devkit, "trainval")[1].tolist() == EXPECTED


def test_voc_s_images_come_with_their_marks(devkit):
    images, marks, classes = load_voc_split(devkit, "trainval")
    assert list(images.names) == ["001", "002", "003"] and classes == ("cat", "dog")
    assert marks.tolist() == EXPECTED
    (devkit / "JPEGImages/002.jpg").write_bytes(b"broken")
    images, marks, _ = load_voc_split(devkit, "trainval")
    assert marks.tolist() == [EXPECTED[0], EXPECTED[2]]  # rows go with the images that are left
    (devkit / "JPEGImages/002.jpg").unlink()
    with pytest.raises(
        UserError, match=r"1 of 3 images .* are missing, such as JPEGImages/002.jpg"
    ):
        load_voc_split(devkit, "trainval")


def test_voc07_learns_from_trainval_and_is_scored_on_test(devkit):
    lists = devkit / "ImageSets/Main"
    (lists / "test.txt").write_text("002\n001\n")
    data = load_voc07(devkit, transform=to_squares(EvalTransform(), 4))
    assert list(data.test.names) == ["002", "001"] and data.class_names == ("cat", "dog")
    assert data.test_y.tolist() == [EXPECTED[1], EXPECTED[0]]
    (lists / "test.txt").write_text("002\n")
    with pytest.raises(UserError, match="cat, dog in trainval but dog in test"):
        load_voc07(devkit)


def test_a_split_that_voc_lacks_is_a_sentence(devkit):
    with pytest.raises(UserError, match=r'no split "trainva".*Did you mean "trainval"'):
        read_voc_labels(devkit, "trainva")
    (devkit / "ImageSets/Main/cat_trainval.txt").write_text("001 7\n")
    with pytest.raises(UserError, match="does not have -1, 0 or 1"):
        read_voc_labels(devkit, "trainval")


@pytest.mark.parametrize(
    ("name", "epochs", "steps"),
    [("msbreg_places205", 28, (28 / 3, 56 / 3)), ("msbreg_inaturalist18", 84, (28, 56))],
)
def test_msbreg_s_transfer_falls_twice_equally_spaced(name, epochs, steps):
    setting = transfer_settings.PUBLISHED[name]
    assert (setting.epochs, setting.batch_size, setting.backbone) == (epochs, 256, None)
    assert (setting.head.lr, setting.head.weight_decay, setting.head.momentum) == (0.2, 1e-4, 0.9)
    assert setting.head.schedule.milestones == pytest.approx(steps)
