"""What must not grow with the data, be done twice, or be left unsaid."""

import io
import threading
import time
import tracemalloc

import numpy as np
import pytest
from rich.console import Console

from selfsight.data import dataset_index as indexes
from selfsight.data import open_source
from selfsight.data.data_summary import inspect_data
from selfsight.data.dataset_index import IndexWriter, load_index
from selfsight.data.sources import parquet as parquets
from selfsight.data.sources.source import LazyNames, Source, resolve_unlabeled
from selfsight.errors import UserError
from selfsight.nn import MemoryBank
from selfsight.terminal import progress
from selfsight.train.training_progress import ProgressBar
from tests.data.image_files import parquet, pixels, png
from tests.data.sources.test_tar import three


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize("labels", [[1, 0, 1, 1, 0, 1], ["b", "a", None, "b", "a", "b"], None])
def test_mapped_labels_equal_those_in_memory(labels, tmp_path, monkeypatch):
    names = ["cat", "dog"] if labels and isinstance(labels[0], int) else ()
    parquet(tmp_path / "x.parquet", [pixels(seed=i) for i in range(6)], labels, names)
    few = open_source(tmp_path, labels=labels is not None)
    monkeypatch.setattr(parquets, "MAX_ROWS_IN_MEMORY", 3)
    for _ in range(2):  # written, then found again
        many = open_source(tmp_path, labels=labels is not None)
        assert many.class_names == few.class_names
        assert labels is None or many.labels.tolist() == few.labels.tolist()
        assert [many.read(i) for i in range(len(few))] == [few.read(i) for i in range(len(few))]
    assert many.names[len(many) - 1] == "x.parquet#5"


def test_distant_parquet_rows_are_read_without_those_in_between(tmp_path, monkeypatch):
    parquet(tmp_path / "x.parquet", [pixels(seed=i) for i in range(60)], row_group_size=4)
    source = open_source(tmp_path)
    read = []
    original = parquets.RowReader._bytes
    monkeypatch.setattr(
        parquets.RowReader, "_bytes", lambda s, v: read.append(len(v)) or original(s, v)
    )
    monkeypatch.setattr(parquets, "IMAGE_BATCH", 4)
    for i in (3, 30, 57):
        assert source.read(i) == png(pixels(seed=i))
    assert sum(read) <= 3 * 8


def test_other_processes_wait_for_the_index(tmp_path, monkeypatch):
    monkeypatch.setattr(indexes.dist, "local_rank", lambda: 1)
    found = []
    reader = threading.Thread(target=lambda: found.append(load_index(tmp_path, "k")))
    reader.start()
    with IndexWriter(tmp_path, "k") as writer:
        writer.add({"label": [0, 1, -1]})
        writer.add({"label": [1]})
        writer.translate("label", np.array([5, 7]))
        assert not found
        writer.finish({"bytes": 3})
    reader.join(5)
    assert found[0].columns["label"].tolist() == [5, 7, -1, 7] and found[0].metadata == {"bytes": 3}


def test_an_unfinished_index_is_not_loaded(tmp_path):
    with IndexWriter(tmp_path, "k") as writer:
        writer.add({"label": [0]})
    assert load_index(tmp_path, "k") is None and not list(tmp_path.iterdir())


def test_the_doctor_examines_shards(tmp_path):
    found = inspect_data(three(tmp_path))
    assert (found.count, found.classes, found.median) == (15, 3, (16, 12))
    assert not found.unreadable


@pytest.mark.parametrize("unknown", [False, True])
def test_labels_are_checked_in_constant_memory(unknown, tmp_path):
    count = 20_000_000
    with (tmp_path / "labels").open("wb") as file:  # zeros that take no room
        file.truncate(8 * count)
    labels = np.memmap(tmp_path / "labels", dtype=np.int64, mode="r+")
    labels[-1] = -1 if unknown else 0
    source = Source("many", LazyNames(count, str), labels, ("a",), lambda i: b"")
    tracemalloc.start()
    found = resolve_unlabeled(source, need_labels=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
    assert (found.labels is None) == unknown and len(found) == count


def test_a_row_for_each_of_a_billion_images_is_refused_with_its_bytes():
    with pytest.raises(UserError, match="512,000,000,000 bytes"):
        MemoryBank(10**9, 128)


def record(step, wait):
    return {
        **{"step": step, "epoch": 1.0, "loss": 1.0, "effective_rank": 3.0},
        **{"images_per_second": 10.0, "data_wait": wait, "time": 1.0},
    }


def show(waits, seconds=6.0):
    """What is printed of records that come every so many seconds, with these shares of waiting."""
    out = io.StringIO()
    with ProgressBar(Console(file=out, width=1000), 99, 0, shown=True) as bar:
        for step, wait in enumerate(waits, 1):
            bar.update(record(step, wait) | {"online_knn": 0.5, "time": seconds * step})
    return out.getvalue()


def test_advice_rests_on_the_share_of_all_the_time_so_far():
    assert "waited for data" not in show(
        [0.9, 0.04, 0.0, *[0.0] * 20]
    )  # the first batch, and 0.2 %
    assert "waited for data" not in show([0.0, *[0.9] * 9], seconds=1.0)  # too soon to say
    text = show([0.9, 0.02, 0.04, 0.3, 0.5])
    assert text.count("waited for data for 12% of the time so far") == 1
    assert text.index("waited for data for") > text.index("step 3/99")
    assert "waiting for data 4%" in text and "waiting for data 2%" not in text


def test_the_first_step_is_told_and_what_is_left_is_judged_without_it():
    out = io.StringIO()
    with ProgressBar(Console(file=out, width=1000), 3, 0, shown=True) as bar:
        bar.started -= 1000  # compiling
        bar.begin(12.34)
        bar.update(record(1, 0.0) | {"online_knn": 0.5})
    assert "First step after 12.3 s." in out.getvalue() and "  0 s left" in out.getvalue()


def test_a_bar_comes_late_and_only_on_a_terminal(monkeypatch):
    out = io.StringIO()
    for terminal in (False, True):
        made = Console(file=out, force_terminal=terminal, width=80)
        monkeypatch.setattr(progress, "open_console", lambda made=made, **_: made)
        assert list(progress.track(iter("abc"), "counting", total=3)) == ["a", "b", "c"]
        assert not out.getvalue()
    monkeypatch.setattr(progress, "DELAY", 0.0)
    for letter in progress.track("abc", "counting"):
        time.sleep(0.01 if letter else 0)
    assert "counting" in out.getvalue()
