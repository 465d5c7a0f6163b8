import pytest
import torch

from selfsight.errors import UserError
from selfsight.evals import train_test_overlap
from selfsight.evals.detection.instances import subset
from selfsight.evals.multilabel_data import as_multilabel
from selfsight.evals.stratified_splits import Split
from selfsight.evals.train_test_overlap import describe_copied_files, describe_copies, find_copies
from tests.evals.detection.generated_data import rectangles
from tests.evals.small_networks import bright, from_pixels, labeled


def ragged(n, seed):
    """Images of few sizes and few values, so that some are the same and many nearly."""
    g = torch.Generator().manual_seed(seed)
    sides = torch.randint(1, 4, (n, 2), generator=g).tolist()
    return [torch.randint(0, 2, (1, h, w), generator=g, dtype=torch.uint8) for h, w in sides]


@pytest.mark.parametrize("sample", [1, 4096])
@pytest.mark.parametrize("besides", [False, True])
def test_copies_are_those_of_a_loop_over_all_pairs(sample, besides, monkeypatch):
    monkeypatch.setattr(train_test_overlap, "SAMPLE", sample)
    train = ragged(40, seed=0)
    test = train if besides else ragged(30, seed=1)
    a, b = torch.arange(0, 40, 2), torch.arange(0, len(test), 2)
    found = find_copies(from_pixels(train), from_pixels(test), a, b, besides=besides)
    expected = [
        sum(torch.equal(test[i], train[j]) for j in a.tolist()) > (1 if besides else 0)
        for i in b.tolist()
    ]
    assert found.tolist() == expected
    assert 0 < sum(expected) < len(expected)


def with_copies(count):
    """Ten test images, of which some are training images."""
    train, other = bright(30), bright(10, seed=1)
    pixels = [*train.flat.view(30, 3, 8, 8)[:count], *other.flat.view(10, 3, 8, 8)[count:]]
    test = from_pixels(pixels, other.labels, other.class_names)
    return labeled(train, test=test)


@pytest.mark.parametrize("convert", [lambda data: data, as_multilabel])
def test_test_images_that_are_training_images_are_counted(convert):
    assert describe_copies(convert(with_copies(0))) is None
    assert "3 of 10 test images are training images too" in describe_copies(convert(with_copies(3)))
    with pytest.raises(UserError, match="Every one of the 10 test images is a training image"):
        describe_copies(convert(with_copies(10)))


def test_copies_within_one_set_are_counted_over_its_split():
    half = bright(10)
    twice = from_pixels([*half.flat.view(10, 3, 8, 8)] * 2, half.labels.repeat(2), half.class_names)
    split = Split(torch.arange(12), torch.arange(12, 20))  # 12 is a copy of 2; 19 of 9
    with pytest.raises(UserError, match="Every one of the 8"):
        describe_copies(labeled(twice, split=split))
    assert describe_copies(labeled(half, split=Split(torch.arange(5), torch.arange(5, 10)))) is None
    assert "20 of 20 images have an identical copy" in describe_copies(labeled(twice))


def test_images_of_one_class_are_a_sentence():
    images = bright(8, classes=1)
    with pytest.raises(UserError, match='of one class, "class 0", so that every encoder'):
        labeled(images, test=bright(4, classes=1, seed=1))


def test_copied_files_of_detection_are_counted():
    train, test = rectangles(6), rectangles(10)  # the first six are the same
    assert "6 of 10 test images are training images" in describe_copied_files(train, test)
    assert describe_copied_files(subset(train, range(3)), subset(test, range(6, 10))) is None
    with pytest.raises(UserError, match="Every one of the 6 test images"):
        describe_copied_files(test, train)
