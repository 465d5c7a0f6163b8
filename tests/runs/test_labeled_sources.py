"""Which classes of the labeled images an evaluation uses."""

import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from selfsight.data.sources.select_classes import CLASS_LISTS
from selfsight.errors import UserError
from selfsight.options.eval_options import EvalOptions
from selfsight.options.pretrain_options import PretrainOptions
from selfsight.recipe_from_options import build_pretrain_recipe
from selfsight.runs.labeled_sources import open_labeled
from selfsight.runs.open_run_images import open_recipe_source
from tests.data.image_files import pixels, png, write

NAMES = [line.split()[0] for line in CLASS_LISTS["imagenet100"].read_text().splitlines()]
OTHERS = ["n00000001", "n02000001", "n99999999"]
OWN = ("imagenet100",)


def imagenet(folder, names):
    """A tree like ImageNet's: two training images and one test image of each class."""
    for name in names:
        for file in ("train/{}/1.png", "train/{}/2.png", "val/{}/3.png"):
            write(folder / file.format(name), pixels(4, 4))
    return folder


def test_a_run_on_imagenet_100_is_evaluated_on_its_classes_of_imagenet(tmp_path):
    folder = imagenet(tmp_path, NAMES + OTHERS)
    train, test, classes, note = open_labeled(EvalOptions(labeled=folder), OWN)
    assert classes == OWN and "--classes all" in note
    for source, each in ((train, 2), (test, 1)):
        assert list(source.class_names) == sorted(NAMES)
        assert np.bincount(source.labels).tolist() == [each] * 100
        for name, label in zip(source.names, source.labels, strict=True):
            assert name.split("/")[0] == source.class_names[label]


def test_given_classes_come_before_those_of_the_run(tmp_path):
    folder = imagenet(tmp_path / "sets", NAMES + OTHERS)
    (tmp_path / "two.txt").write_text(f"{OTHERS[0]}\n{NAMES[0]} bonnet\n")
    for classes in ((OTHERS[0], NAMES[0]), tmp_path / "two.txt"):
        found = open_labeled(EvalOptions(labeled=folder, classes=classes), OWN)
        assert found.train.class_names == found.test.class_names == (OTHERS[0], NAMES[0])
    everything = open_labeled(EvalOptions(labeled=folder, classes="all"), OWN)
    assert len(everything.train.class_names) == 103
    with pytest.raises(UserError, match="lists no class"):
        open_labeled(EvalOptions(labeled=folder, classes="n5"), OWN)
    with pytest.raises(UserError, match='has no class "n5"'):
        open_labeled(EvalOptions(labeled=folder, classes=(NAMES[0], "n5")), OWN)
    shutil.rmtree(folder / "val" / NAMES[0])  # a class that only the test images lack is noted
    found = open_labeled(EvalOptions(labeled=folder, classes=tuple(NAMES[:3])), OWN)
    assert len(found.train.class_names) == 3 and found.test.class_names == tuple(sorted(NAMES[1:3]))


def test_images_that_lack_a_class_of_the_run_are_all_used(tmp_path):
    """Imagenette has one of ImageNet-100's classes, and nobody evaluates on one class."""
    folder = imagenet(tmp_path, NAMES[:3] + OTHERS)
    found = open_labeled(EvalOptions(labeled=folder), OWN)
    assert found.classes == () and len(found.train.class_names) == 6
    assert "lacks some classes of the run (imagenet100)" in found.note
    assert open_labeled(EvalOptions(labeled=folder), ()).note == ""


def test_pretrain_reads_its_labels_from_the_column_of_the_flag(tmp_path):
    names = ["a", "b", "a", "c"]
    columns = {"fine_label": [0, 1, 2, 3], "coarse_label": names, "tags": [[0], [1, 2], [], [0]]}
    image = {"bytes": png(pixels(4, 4)), "path": None}
    file = tmp_path / "images.parquet"
    pq.write_table(pa.table({"image": [image] * 4, **columns}), file)

    def source(**options):
        given = PretrainOptions(recipe="moco.cifar10_r18_200ep", **options)
        return open_recipe_source(build_pretrain_recipe(file, given, torch.device("cpu"))[0])

    assert source().labels.tolist() == columns["fine_label"]
    assert any("--label-column coarse_label" in note for note in source().notes)
    chosen = source(label_column="coarse_label")
    assert [chosen.class_names[i] for i in chosen.labels] == names
    for column, sentence in (("tags", "several classes per image"), ("none", "has no column")):
        with pytest.raises(UserError, match=sentence):
            source(label_column=column)


def test_the_labels_of_the_test_images_are_the_column_of_the_training_images(tmp_path):
    fine, coarse = [0, 1, 2, 3], [0, 0, 1, 1]
    image = [{"bytes": png(pixels(4, 4)), "path": f"{i}.png"} for i in range(4)]
    columns = {"image": image, "fine_label": fine, "coarse_label": coarse}
    for name, more in (("train", {}), ("both", {"label": coarse}), ("coarse", {})):
        table = pa.table(columns | more)
        table = table.drop_columns(["fine_label"]) if name == "coarse" else table
        pq.write_table(table, tmp_path / f"{name}.parquet")
    options = EvalOptions(labeled=tmp_path / "train.parquet", test=tmp_path / "both.parquet")
    found = open_labeled(options, ())
    assert found.test.label_column == "fine_label" and found.test.labels.tolist() == fine
    options = replace(options, test=tmp_path / "coarse.parquet")
    with pytest.raises(UserError, match=r'"fine_label", and those of .* "coarse_label"'):
        open_labeled(options, ())
    found = open_labeled(replace(options, label_column="coarse_label"), ())
    assert found.train.labels.tolist() == found.test.labels.tolist() == coarse
