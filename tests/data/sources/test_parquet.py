import itertools
import json
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from selfsight.data import Loader, list_splits, open_source
from selfsight.data.sources import parquet as parquets
from selfsight.data.stream import StreamedImages
from selfsight.errors import UserError
from tests.data.image_files import parquet, pixels, png

MANY = [pixels(seed=i) for i in range(300)]


def numbers(source):
    known = {png(x): i for i, x in enumerate(MANY)}
    return [known[source.read(i)] for i in range(len(source))]


def test_a_file_gives_its_rows_names_and_classes(tmp_path):
    file = parquet(tmp_path / "x.parquet", MANY[:3], [1, 0, 1], ["cat", "dog"])
    source = open_source(file)
    assert numbers(source) == [0, 1, 2]
    assert list(source.names) == ["0.png", "1.png", "2.png"]
    assert (source.class_names, source.labels.tolist()) == (("cat", "dog"), [1, 0, 1])


def test_a_plain_binary_column_without_labels(tmp_path):
    source = open_source(parquet(tmp_path / "x.parquet", MANY[:2], plain=True))
    assert numbers(source) == [0, 1] and source.labels is None
    assert list(source.names) == ["x.parquet#0", "x.parquet#1"]


def test_text_labels_are_numbered(tmp_path):
    source = open_source(parquet(tmp_path / "x.parquet", MANY[:3], ["b", "a", "b"]))
    assert (source.class_names, source.labels.tolist()) == (("a", "b"), [1, 0, 1])


def test_labels_of_minus_one_count_as_unlabeled(tmp_path):
    source = open_source(parquet(tmp_path / "x.parquet", MANY[:2], [-1, -1], ["a"]))
    assert source.labels is None


@pytest.mark.parametrize("order", ["rising", "falling", "mixed"])
def test_any_order_over_files_and_row_groups(order, tmp_path):
    parquet(tmp_path / "b.parquet", MANY[200:], row_group_size=7)
    parquet(tmp_path / "a.parquet", MANY[:200], row_group_size=150)
    source = open_source(f"{tmp_path}/*.parquet")
    rows = np.arange(300)
    if order != "rising":
        rows = rows[::-1] if order == "falling" else np.random.default_rng(0).permutation(300)
    rows = rows[:: 1 if order == "rising" else 5]
    assert all(source.read(int(i)) == png(MANY[i]) for i in rows)


def test_a_folder_of_files_has_the_splits_in_their_names(tmp_path):
    parquet(tmp_path / "data/train-00000-of-00002.parquet", MANY[:2])
    parquet(tmp_path / "data/train-00001-of-00002.parquet", MANY[2:4])
    parquet(tmp_path / "data/test-00000-of-00001.parquet", MANY[4:5])
    assert list_splits(tmp_path) == ("train", "test")
    assert numbers(open_source(tmp_path)) == [0, 1, 2, 3]
    assert numbers(open_source(tmp_path, split="test")) == [4]


def test_a_folder_of_files_without_splits_is_one_data_set(tmp_path):
    parquet(tmp_path / "part-1.parquet", MANY[2:3])
    parquet(tmp_path / "part-0.parquet", MANY[:2])
    assert list_splits(tmp_path) == ()
    assert numbers(open_source(tmp_path)) == [0, 1, 2]


def test_a_file_without_images_names_its_columns(tmp_path):
    pq.write_table(pa.table({"text": ["a"], "size": [1]}), tmp_path / "x.parquet")
    with pytest.raises(UserError, match="no image column; its columns are text, size"):
        open_source(tmp_path / "x.parquet")


def test_files_of_different_data_sets_raise(tmp_path):
    parquet(tmp_path / "a.parquet", MANY[:1], [0], ["cat"])
    parquet(tmp_path / "b.parquet", MANY[:1], [0], ["dog"])
    with pytest.raises(UserError, match="are not one data set"):
        open_source(tmp_path)


def test_a_file_that_is_not_parquet_raises(tmp_path):
    Path(tmp_path / "x.parquet").write_text("no")
    with pytest.raises(UserError, match="not a readable Parquet file"):
        open_source(tmp_path / "x.parquet")


def test_a_label_beyond_the_class_names_raises(tmp_path):
    with pytest.raises(UserError, match="has labels up to 3, but the file names only 1"):
        open_source(parquet(tmp_path / "x.parquet", MANY[:1], [3], ["cat"]))


@pytest.fixture
def rows_read(monkeypatch):
    """How many rows each reading of row groups gave."""
    read, counts = pq.ParquetFile.iter_batches, []

    def counted(self, *args, **settings):
        batches = list(read(self, *args, **settings))
        counts.append(sum(batch.num_rows for batch in batches))
        return iter(batches)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    return counts


GROUPS = {
    "a small first file": [[10], [100, 100]],
    "a first group that fits no other": [[20], [30] * 10],
    "a smaller last group in each file": [[32, 32, 32, 9], [32, 32, 5], [32, 32, 32, 32, 17]],
    "any": [[7, 31, 12, 40], [25, 25, 3, 1, 38], [], [18]],
}


@pytest.mark.parametrize("name", GROUPS)
def test_each_row_group_is_read_once_an_epoch(name, tmp_path, rows_read):
    schema, small = pa.schema([("image", pa.binary())]), png(pixels(2, 2))
    for i, groups in enumerate(GROUPS[name]):
        with pq.ParquetWriter(tmp_path / f"{i}.parquet", schema) as out:
            for rows in groups:
                out.write_table(pa.table({"image": [small] * rows}, schema))
    source = open_source(tmp_path)
    sizes = [rows for groups in GROUPS[name] for rows in groups]
    assert len(source) == sum(sizes)
    loader = Loader(
        StreamedImages(source, store_size=2, channels=3, workers=1), batch_size=16, seed=0
    )
    list(itertools.islice(loader.batches(0), loader.steps_per_epoch))
    assert sorted(rows_read) == sorted(sizes)


def test_images_of_uneven_row_groups_match_their_labels(tmp_path):
    parquet(tmp_path / "a.parquet", MANY[:30], list(range(30)), row_group_size=12)
    parquet(tmp_path / "b.parquet", MANY[30:50], list(range(30, 50)), row_group_size=7)
    source = open_source(tmp_path)
    assert source.shard_starts.tolist() == [0, 12, 24, 30, 37, 44, 50]
    streamed = StreamedImages(source, store_size=16, channels=3, workers=1)
    for raw in itertools.islice(Loader(streamed, batch_size=10, seed=0).batches(0), 10):
        assert torch.equal(raw.labels, raw.index)
        for i, one in zip(raw.index.tolist(), raw.images.padded(), strict=True):
            assert np.array_equal(one.permute(1, 2, 0), MANY[i])
    assert streamed.skipped == []


@pytest.mark.parametrize("groups", [None, 0])
def test_files_without_rows_raise(groups, tmp_path):
    empty = pa.table({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())})
    with pq.ParquetWriter(tmp_path / "x.parquet", empty.schema) as out:
        if groups is not None:
            out.write_table(empty)
    with pytest.raises(UserError, match="has no images"):
        open_source(tmp_path / "x.parquet")


def test_files_are_opened_several_at_once_and_share_their_class_names(tmp_path, monkeypatch):
    for i in range(4):
        parquet(tmp_path / f"{i}.parquet", MANY[i : i + 1], [i], [f"class {k}" for k in range(4)])
    footer, met, made = parquets._read_footer, threading.Barrier(4, timeout=20), []

    def together(*args):
        met.wait()
        made.append(footer(*args))
        return made[-1]

    monkeypatch.setattr(parquets, "_read_footer", together)
    assert open_source(tmp_path).labels.tolist() == [0, 1, 2, 3]
    assert len({id(one.columns.label.class_names) for one in made}) == 1


def test_labels_of_many_rows_are_read_without_a_writable_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(parquets, "MAX_ROWS_IN_MEMORY", 2)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/x")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    source = open_source(parquet(tmp_path / "x.parquet", MANY[:3], ["b", "a", "b"]))
    assert (source.class_names, source.labels.tolist()) == (("a", "b"), [1, 0, 1])
    assert "XDG_CACHE_HOME" in source.notes[0]


def table(path, images=MANY, features=None, **columns):
    """A file with these columns, described as the `datasets` library does."""
    count = len(next(iter(columns.values())))
    encoded = [{"bytes": png(x), "path": None} for x in images[:count]]
    written = pa.table({"image": encoded, **columns})
    metadata = {b"huggingface": json.dumps({"info": {"features": features or {}}}).encode()}
    pq.write_table(written.replace_schema_metadata(metadata), path)
    return path


def named(*names):
    return {"_type": "ClassLabel", "names": list(names)}


CIFAR = {"coarse_label": named("plant", "animal"), "fine_label": named("oak", "cat", "dog")}


def test_the_choice_between_two_label_columns_is_said_and_can_be_changed(tmp_path):
    file = table(
        tmp_path / "x.parquet", features=CIFAR, coarse_label=[0, 1, 1], fine_label=[0, 2, 1]
    )
    source = open_source(file, labels=True)
    assert (source.labels.tolist(), source.class_names) == ([0, 2, 1], ("oak", "cat", "dog"))
    (note,) = source.notes
    assert 'column "fine_label"' in note and "--label-column coarse_label" in note
    coarse = open_source(file, labels=True, label_column="coarse_label")
    assert (coarse.labels.tolist(), coarse.class_names) == ([0, 1, 1], ("plant", "animal"))
    assert coarse.notes == () and coarse.label_column == "coarse_label"


def test_a_label_column_by_another_name(tmp_path):
    file = table(tmp_path / "x.parquet", breed=["b", "a", None])
    with pytest.raises(UserError, match="--label-column NAME"):
        open_source(file, labels=True)
    source = open_source(file, labels=True, label_column="breed")
    assert (source.labels.tolist(), source.class_names) == ([1, 0], ("a", "b"))
    assert source.notes == (f"1 of 3 images of {file} have no label: left out.",)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            "breeed",
            r'no column "breeed"\. Did you mean "breed"\? Its columns are image, breed, box',
        ),
        ("image", 'Column "image" .* labels are numbers, words, or lists of them'),
        ("box", 'Column "box" .* labels are numbers, words, or lists of them'),
    ],
)
def test_a_column_that_is_not_labels_is_a_sentence(column, message, tmp_path):
    file = table(tmp_path / "x.parquet", breed=["b", "a"], box=[[0.1, 0.5], [0.2, 0.4]])
    with pytest.raises(UserError, match=message):
        open_source(file, label_column=column)


def test_a_label_column_needs_columns(tmp_path):
    with pytest.raises(UserError, match="digits has no columns: --label-column"):
        open_source("digits", label_column="label")


LISTS = [[2, 0], [], None, [1]]


@pytest.mark.parametrize(
    "feature",
    [
        {"_type": "Sequence", "feature": named("car", "cat", "dog")},
        {"_type": "List", "feature": named("car", "cat", "dog")},
        [named("car", "cat", "dog")],
    ],
    ids=["sequence", "list", "older"],
)
def test_a_column_of_lists_has_several_classes_per_image(feature, tmp_path):
    file = table(tmp_path / "x.parquet", features={"labels": feature}, labels=LISTS)
    source = open_source(file, labels=True)
    assert source.labels is None and source.class_names == ("car", "cat", "dog")
    assert source.multilabels.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert len(source) == 3 and "1 of 4 images" in source.notes[0]  # null is unlabeled
    assert open_source(file).multilabels is None  # as some images have none


def test_lists_of_words_are_numbered_by_name(tmp_path):
    file = table(tmp_path / "x.parquet", tags=[["b", "a"], ["c"], []])
    source = open_source(file, labels=True, label_column="tags")
    assert source.class_names == ("a", "b", "c")
    assert source.multilabels.tolist() == [[1, 1, 0], [0, 0, 1], [0, 0, 0]]


def test_lists_may_repeat_a_class_as_boxes_do(tmp_path):
    file = table(tmp_path / "x.parquet", labels=[[2, 2, 0], [1], [-1]])
    assert open_source(file).multilabels.tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]


def test_lists_of_zeros_and_ones_have_one_for_each_class(tmp_path):
    file = table(tmp_path / "x.parquet", labels=[[0, 1, 0], [1, 1, 0], None])
    source = open_source(file, labels=True)
    assert source.multilabels.tolist() == [[0, 1, 0], [1, 1, 0]]
    assert source.class_names == ("0", "1", "2") and "0 or 1 for each of 3" in source.notes[0]


def test_a_nested_column_called_labels_is_not_taken_for_labels(tmp_path):
    file = table(tmp_path / "x.parquet", labels=[{"box": [1, 2]}, {"box": [3, 4]}])
    assert open_source(file).labels is None and len(open_source(file)) == 2


def test_the_choice_between_fine_and_coarse_labels_is_told(tmp_path):
    """Without a description of the columns, as a writer other than Hugging Face's leaves them."""
    row = {"bytes": png(pixels(8, 8)), "path": "a"}
    table = pa.table({"image": [row] * 2, "coarse_label": [0, 0], "fine_label": [0, 1]})
    pq.write_table(table, tmp_path / "set.parquet")
    source = open_source(tmp_path / "set.parquet")
    assert source.label_column == "fine_label"
    assert any("--label-column coarse_label" in note for note in source.notes)
