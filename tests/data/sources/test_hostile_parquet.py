"""Parquet files whose labels or footers would take all memory."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from selfsight.data import load_images, open_source
from selfsight.errors import UserError
from tests.data.image_files import parquet, pixels

IMAGES = [pixels(4, 4, seed=i) for i in range(3)]


@pytest.mark.parametrize("large", [2_000_000_000, 2**63 - 1, 2**64 - 1])
def test_huge_label_numbers_are_names(tmp_path, large):
    values = pa.array([7, large, None], pa.uint64() if large >= 2**63 else pa.int64())
    source = open_source(parquet(tmp_path / "x.parquet", IMAGES, values))
    assert source.labels is None  # one row has none
    labeled = open_source(tmp_path / "x.parquet", labels=True)
    assert labeled.class_names == ("7", str(large)) and labeled.labels.tolist() == [0, 1]


def test_huge_label_numbers_in_lists_are_names(tmp_path):
    values = pa.array([[2_000_000_000], [5, 2_000_000_000], []])
    source = open_source(parquet(tmp_path / "x.parquet", IMAGES, values))
    assert source.multilabels.tolist() == [[0, 1], [1, 1], [0, 0]]
    assert source.class_names == ("5", "2000000000")


@pytest.mark.parametrize(
    "names", [7, {"a": "x"}, {"1": "b", "0": "a"}, ["\ud800", "b"], [{}, []], "ab", [[[[]]]], None]
)
def test_odd_class_names_are_no_traceback(tmp_path, names):
    table = pa.table({"image": [b"1", b"2"], "label": [0, 1]})
    features = {"label": {"_type": "ClassLabel", "names": names}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "x.parquet")
    if isinstance(names, list | dict) and len(names) < 2:
        with pytest.raises(UserError, match="Correct the class names"):
            open_source(tmp_path / "x.parquet")
    else:
        class_names = open_source(tmp_path / "x.parquet").class_names
        assert len(class_names) == 2 and all(name.encode() for name in class_names)


def test_one_large_value_in_a_dictionary_is_not_copied_for_all_rows_at_once(tmp_path):
    large = np.random.default_rng(0).bytes(4 << 20)
    pq.write_table(
        pa.table({"image": pa.DictionaryArray.from_arrays([0] * 300, pa.array([large]))}),
        tmp_path / "x.parquet",
        dictionary_pagesize_limit=1 << 30,
        store_schema=False,
    )
    source = open_source(tmp_path / "x.parquet")
    before = pa.default_memory_pool().max_memory()
    assert source.read(200)[:64] == large[:64]
    held = pa.default_memory_pool().max_memory() - before
    assert held < 64 << 20
    images = source.read_range(0, 300)
    assert len(images) == 300 and len({id(image) for image in images}) <= 3


def test_a_row_that_is_not_there_is_unreadable_and_the_others_are_read(tmp_path):
    path = parquet(tmp_path / "x.parquet", IMAGES * 40, row_group_size=10, plain=True)
    good = path.read_bytes()
    source = open_source(path)
    path.write_bytes(good[:300] + b"\xff" * 500 + good[800:])
    images = load_images(source, store_size=8)
    assert 0 < len(images) < 120 and len(images) + len(images.skipped) == 120
