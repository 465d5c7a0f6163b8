from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sightline.data import open_source, splits_of
from sightline.errors import UserError
from tests.data.made import parquet, pixels, png

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


def test_words_as_labels_are_numbered(tmp_path):
    source = open_source(parquet(tmp_path / "x.parquet", MANY[:3], ["b", "a", "b"]))
    assert (source.class_names, source.labels.tolist()) == (("a", "b"), [1, 0, 1])


def test_labels_of_minus_one_are_no_labels(tmp_path):
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
    assert splits_of(tmp_path) == ("train", "test")
    assert numbers(open_source(tmp_path)) == [0, 1, 2, 3]
    assert numbers(open_source(tmp_path, split="test")) == [4]


def test_a_folder_of_files_without_splits_is_read_whole(tmp_path):
    parquet(tmp_path / "part-1.parquet", MANY[2:3])
    parquet(tmp_path / "part-0.parquet", MANY[:2])
    assert splits_of(tmp_path) == ()
    assert numbers(open_source(tmp_path)) == [0, 1, 2]


def test_a_file_without_pictures_names_its_columns(tmp_path):
    pq.write_table(pa.table({"text": ["a"], "size": [1]}), tmp_path / "x.parquet")
    with pytest.raises(UserError, match="no image column; its columns are text, size"):
        open_source(tmp_path / "x.parquet")


def test_files_of_different_sets_are_refused(tmp_path):
    parquet(tmp_path / "a.parquet", MANY[:1], [0], ["cat"])
    parquet(tmp_path / "b.parquet", MANY[:1], [0], ["dog"])
    with pytest.raises(UserError, match="do not belong together"):
        open_source(tmp_path)


def test_what_is_no_parquet_is_refused(tmp_path):
    Path(tmp_path / "x.parquet").write_text("no")
    with pytest.raises(UserError, match="not a Parquet file"):
        open_source(tmp_path / "x.parquet")


def test_a_label_beyond_the_class_names_is_refused(tmp_path):
    with pytest.raises(UserError, match="goes up to 3, but the file names only 1"):
        open_source(parquet(tmp_path / "x.parquet", MANY[:1], [3], ["cat"]))
