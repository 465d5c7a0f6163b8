import os
from pathlib import Path

import numpy as np
import pytest
import timm
import torchvision

from selfsight.data import list_splits, open_source
from selfsight.data.sources import torchvision_sets
from selfsight.data.sources.folder import list_folder
from selfsight.data.sources.select_classes import CLASS_LISTS
from selfsight.errors import UserError
from tests.data.image_files import parquet, pixels, png, write


def read_all(source):
    return [source.read(i) for i in range(len(source))]


def test_a_folder_is_read_at_any_depth_in_order(tmp_path):
    for i, name in enumerate(["b/deep/er/1.png", "a 2.PNG", "ü/ñ x.jpeg", ".hidden/4.png"]):
        write(tmp_path / name, pixels(seed=i))
    write(tmp_path / "b/.5.png", pixels())
    (tmp_path / "notes.txt").write_text("no image")
    source = open_source(tmp_path)
    assert list(source.names) == ["a 2.PNG", "b/deep/er/1.png", "ü/ñ x.jpeg"]
    assert source.labels is None
    assert read_all(source) == [png(pixels(seed=i)) for i in (1, 0, 2)]


def test_links_are_followed_and_loops_end(tmp_path):
    write(tmp_path / "else/1.png", pixels())
    (tmp_path / "here").mkdir()
    os.symlink(tmp_path / "else", tmp_path / "here/link")
    os.symlink(tmp_path / "here", tmp_path / "here/loop")
    assert list_folder(tmp_path / "here").files == ["link/1.png"]


def test_labels_are_the_first_sub_folders(tmp_path):
    for name in ["cat/x/1.png", "cat/2.png", "dog/1.png"]:
        write(tmp_path / name, pixels())
    source = open_source(tmp_path, labels=True)
    assert source.class_names == ("cat", "dog")
    assert source.labels.tolist() == [0, 0, 1]


def test_images_outside_class_folders_are_left_out_with_a_note(tmp_path):
    for name in ["cat/1.png", "dog/1.png", "stray.png"]:
        write(tmp_path / name, pixels())
    source = open_source(tmp_path, labels=True)
    assert list(source.names) == ["cat/1.png", "dog/1.png"]
    assert "1 of 3" in source.notes[0]


def test_train_and_val_folders_are_splits(tmp_path):
    for name in ["train/cat/1.png", "train/dog/1.png", "val/dog/2.png"]:
        write(tmp_path / name, pixels())
    assert list_splits(tmp_path) == ("train", "test")
    assert list(open_source(tmp_path).names) == ["cat/1.png", "dog/1.png"]
    assert list(open_source(tmp_path, split="test").names) == ["dog/2.png"]
    assert open_source(tmp_path, split="train", labels=True).class_names == ("cat", "dog")


def test_a_folder_without_splits_has_none(tmp_path):
    write(tmp_path / "train/1.png", pixels())
    assert list_splits(tmp_path) == ()
    with pytest.raises(UserError, match='no split "test"'):
        open_source(tmp_path, split="test")


def test_a_list_is_relative_to_its_folder(tmp_path):
    write(tmp_path / "in side/1.png", pixels(seed=1))
    write(tmp_path / "2.png", pixels(seed=2))
    (tmp_path / "list.txt").write_text("2.png\tdog\n\nin side/1.png\tcat\n")
    source = open_source(tmp_path / "list.txt")
    assert read_all(source) == [png(pixels(seed=2)), png(pixels(seed=1))]
    assert (source.class_names, source.labels.tolist()) == (("cat", "dog"), [1, 0])


def test_numbers_as_classes_are_sorted_as_numbers(tmp_path):
    (tmp_path / "list.txt").write_text("a.png\t10\nb.png\t2\n")
    assert open_source(tmp_path / "list.txt").class_names == ("2", "10")


def test_a_pattern_selects_the_images_it_matches(tmp_path):
    for name in ["a1.png", "a2.png", "b1.png"]:
        write(tmp_path / name, pixels())
    source = open_source(f"{tmp_path}/a*.png")
    assert [Path(n).name for n in source.names] == ["a1.png", "a2.png"]


def test_listed_classes_are_selected_and_renumbered(tmp_path):
    for name in ["n01/1.png", "n02/1.png", "n03/1.png"]:
        write(tmp_path / "data" / name, pixels())
    (tmp_path / "keep").write_text("n03 a fish\nN01\nn99\n")
    source = open_source(tmp_path / "data", labels=True, classes=tmp_path / "keep")
    assert source.class_names == ("n01", "n03")
    assert list(source.names) == ["n01/1.png", "n03/1.png"]
    assert source.labels.tolist() == [0, 1]
    assert source.notes[0].startswith("1 class of ") and "was not found: n99" in source.notes[0]


def test_a_class_is_found_by_any_synonym(tmp_path):
    names = ("tench, Tinca tinca", "goldfish")
    file = parquet(tmp_path / "x.parquet", [pixels(), pixels(seed=1)], [0, 1], names)
    (tmp_path / "keep").write_text("Tinca tinca\n")
    assert open_source(file, classes=tmp_path / "keep").class_names == names[:1]


def make_imagenet(folder, count=100):
    """A folder per class, with one image: the first classes of ImageNet-100, and two others."""
    names = [line.split()[0] for line in CLASS_LISTS["imagenet100"].read_text().splitlines()]
    for name in ("n00000001", "n99999999", *names[:count]):
        write(folder / name / "1.png", pixels(8, 8))
    return sorted(names[:count])


def test_the_classes_of_imagenet_100_come_with_the_package(tmp_path):
    names = make_imagenet(tmp_path)
    source = open_source(tmp_path, classes="imagenet100")
    assert list(source.class_names) == names and len(set(names)) == len(source) == 100
    # The list is that of JCL's supplement, section 4, from its first to its last class.
    lines = CLASS_LISTS["imagenet100"].read_text().splitlines()
    assert (lines[0][:9], lines[-1][:9]) == ("n02869837", "n02090622")


def test_imagenet_100_is_also_found_where_classes_have_words_for_names(tmp_path):
    names = ("tench, Tinca tinca", "bonnet, poke bonnet", "langur")
    file = parquet(tmp_path / "x.parquet", [pixels(seed=i) for i in range(3)], [0, 1, 2], names)
    assert open_source(file, classes="imagenet100").class_names == names[1:]


def test_the_words_of_imagenet_100_are_timm_s_for_its_numbers():
    info = timm.data.ImageNetInfo()
    words = dict(zip(info.label_names(), info.label_descriptions(), strict=True))
    for line in CLASS_LISTS["imagenet100"].read_text().splitlines():
        assert line == f"{line[:9]} {words[line[:9]]}"


def test_classes_are_selected_by_name_and_all_selects_all(tmp_path):
    for name in ("n01", "n02", "n03"):
        write(tmp_path / name / "1.png", pixels())
    assert open_source(tmp_path, classes=["n03", "N01"]).class_names == ("n01", "n03")
    assert len(open_source(tmp_path, classes=["all"])) == 3
    assert open_source(tmp_path, classes="all").labels is None  # as without --classes
    with pytest.raises(UserError, match=r"lists no class of .*n01, n02, n03"):
        open_source(tmp_path, classes=["n04"])
    with pytest.raises(UserError, match=r'has no class "n04"\..*n01, n02, n03'):
        open_source(tmp_path, classes=["n02", "n04"])
    with pytest.raises(UserError, match=r"lost.txt cannot be read"):
        open_source(tmp_path, classes="lost.txt")


def test_torchvision_data_sets_are_opened_by_name():
    source = open_source("torchvision:FakeData")
    assert len(source) == 1000
    expected = np.asarray(torchvision.datasets.FakeData()[3][0])
    np.testing.assert_array_equal(source.read(3), expected)


def test_a_torchvision_set_on_disk_is_read(tmp_path):
    raw = tmp_path / "MNIST/raw"
    raw.mkdir(parents=True)
    for kind, count in (("train", 5), ("t10k", 3)):
        images = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (count, 28, 28))
        (raw / f"{kind}-images-idx3-ubyte").write_bytes(images + bytes(range(count)) * 784)
        labels = bytes([0, 0, 8, 1]) + count.to_bytes(4, "big")
        (raw / f"{kind}-labels-idx1-ubyte").write_bytes(labels + bytes(range(count)))
    word = f"torchvision:MNIST@{tmp_path}"
    assert list_splits(word) == ("train", "test")
    source = open_source(word, split="test")
    assert (len(source), source.labels.tolist()) == (3, [0, 1, 2])
    assert source.read(0).shape == (28, 28, 1) and source.class_names[1] == "1 - one"
    assert len(open_source(word)) == 5


@pytest.fixture
def stl10(tmp_path, monkeypatch):
    """STL-10's binary files with 4 training, 3 test and 5 unlabeled images of random pixels."""
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    random = np.random.default_rng(0)
    for split, count in (("train", 4), ("test", 3), ("unlabeled", 5)):
        pixels = random.integers(0, 256, (count, 3, 96, 96), dtype=np.uint8)
        (folder / f"{split}_X.bin").write_bytes(pixels.tobytes())
        if split != "unlabeled":  # labels count from 1
            (folder / f"{split}_y.bin").write_bytes(bytes(range(1, count + 1)))
    (folder / "class_names.txt").write_text("\n".join(f"class {i}" for i in range(10)))
    # torchvision compares the checksums of the real files.
    monkeypatch.setattr(torchvision.datasets.STL10, "_check_integrity", lambda self: True)
    return tmp_path


@pytest.mark.parametrize(
    ("split", "first", "count", "labels"),
    [
        ("", "train", 4, [0, 1, 2, 3]),
        (":train", "train", 4, [0, 1, 2, 3]),
        (":test", "test", 3, [0, 1, 2]),
        (":unlabeled", "unlabeled", 5, None),
        (":train+unlabeled", "train", 9, None),
    ],
)
def test_a_split_of_stl10_is_opened_by_its_name(stl10, split, first, count, labels):
    source = open_source(f"torchvision:STL10@{stl10}{split}")
    assert len(source) == count
    assert labels is None if source.labels is None else source.labels.tolist() == labels
    assert list_splits(source.name) == (() if split else ("train", "test"))
    # The files hold the columns of each channel, one after the other.
    raw = np.fromfile(stl10 / f"stl10_binary/{first}_X.bin", np.uint8).reshape(-1, 3, 96, 96)
    np.testing.assert_array_equal(source.read(1), raw[1].transpose(2, 1, 0))
    theirs = torchvision.datasets.STL10(stl10, split=split.removeprefix(":") or "train")
    for i, (image, label) in enumerate(theirs):
        np.testing.assert_array_equal(source.read(i), np.asarray(image))
        assert source.labels is None or source.labels[i] == label


def test_splits_of_one_set_have_pixel_caches_of_their_own(stl10):
    words = [f"torchvision:STL10@{stl10}:{s}" for s in ("train", "test", "unlabeled")]
    assert len({open_source(word).fingerprint() for word in words}) == 3


def test_images_without_a_label_are_left_out_where_labels_are_needed(stl10):
    source = open_source(f"torchvision:STL10@{stl10}:train+unlabeled", labels=True)
    assert len(source) == 4
    assert "5 of 9 images" in source.notes[0]


@pytest.mark.parametrize(
    ("word", "settings", "messages"),
    [
        ("STL10@{}:unlabeled", {"labels": True}, ["has no labels"]),
        ("STL10@{}:unlabelled", {}, ['no split "unlabelled"', "train+unlabeled"]),
        ("STL10@{}:test", {"split": "train"}, ["is not divided into splits"]),
        ("CIFAR10@{}:unlabeled", {}, ['no split "unlabeled"; it has train and test']),
        ("FakeData:train", {}, ["has no splits"]),
        ("EMNIST@{}", {}, ['no split "train"', "letters", "EMNIST@", ":SPLIT"]),
    ],
)
def test_a_split_that_a_torchvision_set_lacks_raises_with_advice(stl10, word, settings, messages):
    with pytest.raises(UserError) as caught:
        open_source(f"torchvision:{word.format(stl10)}", **settings)
    for message in messages:
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("word", "name", "root", "split"),
    [
        ("STL10", "STL10", "data", None),
        ("STL10:unlabeled", "STL10", "data", "unlabeled"),
        ("STL10@C:\\sets", "STL10", "C:\\sets", None),
        ("STL10@C:\\sets:unlabeled", "STL10", "C:\\sets", "unlabeled"),
        ("STL10@/a:b/c", "STL10", "/a:b/c", None),
    ],
)
def test_a_colon_in_a_path_is_not_a_split(word, name, root, split):
    assert torchvision_sets._parse_spec(f"torchvision:{word}") == (name, Path(root), split)


def make_nothing(folder):
    (folder / "empty").mkdir()


def make_texts(folder):
    for i in range(3):
        (folder / f"{i}.{'csv' if i else 'txt'}").write_text("x")


def make_heic(folder):
    (folder / "1.heic").write_bytes(b"x")


def make_flat(folder):
    write(folder / "1.png", pixels())


INVALID = {
    "missing": (make_flat, "{}/1.pgn", {}, ['no file or folder "', "Did you mean", "1.png"]),
    "near a built-in": (None, "shape", {}, ['Did you mean "shapes"?']),
    "empty folder": (make_nothing, "{}/empty", {}, ["holds no images: it is empty"]),
    "no images": (make_texts, "{}", {}, ["3 files, none of them an image: .csv, .txt"]),
    "empty list": (lambda f: (f / "l.txt").write_text("\n"), "{}/l.txt", {}, ["is empty", "PATH"]),
    "single image": (make_flat, "{}/1.png", {}, ["is a single image"]),
    "other file": (lambda f: (f / "a.zip").write_text(""), "{}/a.zip", {}, ['".zip" file']),
    "pattern": (None, "{}/*.parquet", {}, ["matches nothing"]),
    "no sub-folders": (make_flat, "{}", {"labels": True}, ["no sub-folders", "CLASS/image"]),
    "split of a list": (
        lambda f: (f / "l.txt").write_text("a.png"),
        "{}/l.txt",
        {"split": "test"},
        ["is not divided"],
    ),
    "unlabeled list": (
        lambda f: (f / "l.txt").write_text("a.png"),
        "{}/l.txt",
        {"labels": True},
        ["has no labels"],
    ),
    "unknown split": (None, "digits", {"split": "tset"}, ["train and test"]),
    "unknown set": (None, "torchvision:cifar1O", {}, ['Did you mean "CIFAR10"?']),
    "absent set": (None, "torchvision:CIFAR10@{}", {}, ["does not download", "download=True"]),
}


@pytest.mark.parametrize("case", INVALID)
def test_a_wrong_argument_raises_with_advice(case, tmp_path):
    make, spec, settings, messages = INVALID[case]
    if make:
        make(tmp_path)
    with pytest.raises(UserError) as error:
        open_source(spec.format(tmp_path), **settings)
    for message in messages:
        assert message in str(error.value)


def test_only_heic_files_raise_with_the_missing_package(tmp_path, monkeypatch):
    monkeypatch.setattr("selfsight.data.sources.folder.heic_readable", lambda: False)
    make_heic(tmp_path)
    with pytest.raises(UserError, match=r"All 1 images .*selfsight\[heic\]"):
        open_source(tmp_path)


@pytest.mark.parametrize(("text", "message"), [("n99\n", "lists no class"), ("", "It is empty")])
def test_a_list_without_known_classes_raises(text, message, tmp_path):
    write(tmp_path / "data/n01/1.png", pixels())
    (tmp_path / "keep").write_text(text)
    with pytest.raises(UserError, match=message):
        open_source(tmp_path / "data", classes=tmp_path / "keep")
