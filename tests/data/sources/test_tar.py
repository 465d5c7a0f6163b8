import io
import json
import tarfile

import fsspec
import numpy as np
import pytest
import torch

from selfsight.data import list_splits, load_images, open_source
from selfsight.data.sources import tar_labels
from selfsight.data.sources.remote_files import expand_braces
from selfsight.errors import UserError
from tests.data.image_files import parquet, pixels, png, read_padded


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def tar(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def shard(first, count, label=lambda i: f"{i % 3}"):
    members = {}
    for i in range(first, first + count):
        members[f"set/{i:04d}.png"] = png(pixels(seed=i))
        members[f"set/{i:04d}.cls"] = label(i).encode()
    return tar(members)


def three(folder, form="shard-{:03d}.tar", count=5):
    for k in range(3):
        (folder / form.format(k)).write_bytes(shard(k * count, count))
    return folder


def same(source, count=15):
    assert len(source) == count
    assert [source.read(i) for i in range(count)] == [png(pixels(seed=i)) for i in range(count)]
    return True


@pytest.mark.parametrize(
    "word", ["{}", "{}/*.tar", "{}/shard-{{000..002}}.tar", "{}/shard-00?.tar"]
)
def test_shards_are_found_by_folder_list_and_pattern(tmp_path, word):
    source = open_source(word.format(three(tmp_path)))
    assert same(source)
    assert source.names[7] == "set/0007.png"
    assert (source.class_names, source.labels.tolist()) == (("0", "1", "2"), [0, 1, 2] * 5)


def test_one_shard_is_enough(tmp_path):
    assert same(open_source(three(tmp_path) / "shard-000.tar"), 5)


def test_reading_a_range_equals_single_reads(tmp_path):
    source = open_source(three(tmp_path))
    assert source.shard_starts.tolist() == [0, 5, 10, 15] and source.chunk_size > 1
    for first, behind in ((0, 5), (6, 9), (14, 15)):
        assert source.read_range(first, behind) == [source.read(i) for i in range(first, behind)]


def test_the_index_is_written_once_and_anew_when_a_shard_changes(tmp_path, monkeypatch):
    three(tmp_path)
    open_source(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("selfsight.data.sources.tar._read_members", lambda file: 1 / 0)
        assert same(open_source(tmp_path))
    (tmp_path / "shard-002.tar").write_bytes(shard(10, 2))
    assert same(open_source(tmp_path), 12)


def test_classes_come_from_cls_json_or_text(tmp_path):
    one = png(pixels())
    content = {
        "a.png": one, "a.json": json.dumps({"label": "dog", "width": 3}).encode(),
        "b.c.png": one, "b.txt": b"cat\n",
        "d/e.PNG": one, "d/e.cls": b"dog", "d/e.txt": b"a caption",
        "f.png": one,
    }  # fmt: skip
    (tmp_path / "x.tar").write_bytes(tar(content))
    source = open_source(tmp_path / "x.tar")
    assert source.labels is None  # one image has no class
    source = open_source(tmp_path / "x.tar", labels=True)
    assert list(source.names) == ["a.png", "b.c.png", "d/e.PNG"]
    assert [source.class_names[y] for y in source.labels] == ["dog", "cat", "dog"]
    assert "1 of 4" in source.notes[0]


def test_captions_are_not_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(tar_labels, "MAX_CLASSES", 20)
    members = {}
    for i in range(21):
        members |= {f"{i}.png": b"x", f"{i}.txt": f"image {i}".encode()}
    (tmp_path / "x.tar").write_bytes(tar(members))
    assert open_source(tmp_path / "x.tar").labels is None


def test_listed_classes_are_selected_and_ranges_still_read_at_once(tmp_path):
    (tmp_path / "keep").write_text("2\n1\n")
    source = open_source(three(tmp_path), classes=tmp_path / "keep")
    assert source.class_names == ("1", "2") and len(source) == 10
    assert source.shard_starts.tolist() == [0, 3, 6, 10]
    expected = [png(pixels(seed=i)) for i in range(15) if i % 3]
    assert source.read_range(3, 6) == expected[3:6]
    assert [source.read(i) for i in range(10)] == expected


def test_the_names_of_shards_give_the_splits(tmp_path):
    (tmp_path / "train-0.tar").write_bytes(shard(0, 4))
    (tmp_path / "val-0.tar").write_bytes(shard(4, 2))
    assert list_splits(tmp_path) == ("train", "test")
    assert len(open_source(tmp_path)) == 4 and len(open_source(tmp_path, split="test")) == 2


def test_the_pixels_of_shards_equal_those_of_files(tmp_path):
    images = load_images(open_source(three(tmp_path)), store_size=64)
    batch, _ = read_padded(images, torch.tensor([4, 14]))
    np.testing.assert_array_equal(batch[1].permute(1, 2, 0), pixels(seed=14))


def test_braces_expand_as_in_a_shell():
    assert expand_braces("s-{08..11}.tar") == ["s-08.tar", "s-09.tar", "s-10.tar", "s-11.tar"]
    assert expand_braces("{a,b}/{1..2}") == ["a/1", "a/2", "b/1", "b/2"]
    assert expand_braces("plain") == ["plain"]


def test_of_several_images_of_a_key_the_plain_one_is_used(tmp_path):
    names = ["0.jpg", "0.seg.png", "1.seg.png", "1.PNG", "2.left.png", "2.right.png", "d.x/3.webp"]
    (tmp_path / "x.tar").write_bytes(tar(dict.fromkeys(names, png(pixels()))))
    kept = list(open_source(tmp_path / "x.tar").names)
    assert kept == ["0.jpg", "1.PNG", "2.left.png", "2.right.png", "d.x/3.webp"]


def damaged(at, block):
    whole = bytearray(shard(0, 5))
    headers = [i for i in range(0, len(whole), 512) if whole[i : i + 4] == b"set/"]
    whole[headers[at] : headers[at] + len(block)] = block
    return bytes(whole), headers[at]


@pytest.mark.parametrize("block", [b"\xff" * 512, bytes(512), b"x"])
@pytest.mark.parametrize("at", [1, 6])
def test_a_damaged_shard_is_named_with_the_byte(at, block, tmp_path):
    content, place = damaged(at, block)
    (tmp_path / "good.tar").write_bytes(shard(5, 5))
    (tmp_path / "bad.tar").write_bytes(content)
    for _ in range(2):  # no short index was kept
        with pytest.raises(UserError, match=rf"bad\.tar is damaged .*at byte {place}\b.*again"):
            open_source(tmp_path)
    (tmp_path / "bad.tar").unlink()
    assert len(open_source(tmp_path)) == 5


def test_a_shard_that_was_cut_off_is_not_called_compressed(tmp_path):
    whole = shard(0, 5)
    place = len(whole.rstrip(b"\0")) - 600
    (tmp_path / "x.tar").write_bytes(whole[:place])
    with pytest.raises(UserError, match="cut off at byte") as error:
        open_source(tmp_path)
    assert "gunzip" not in str(error.value)


@pytest.mark.parametrize("zeros", [0, 512, 1024, 700])
def test_a_missing_end_marker_is_tolerated(zeros, tmp_path):
    whole = shard(0, 5)
    end = -(-len(whole.rstrip(b"\0")) // 512) * 512
    (tmp_path / "x.tar").write_bytes(whole[:end] + bytes(zeros))
    assert same(open_source(tmp_path), 5)


INVALID = {
    "no images": ("x.tar", tar({"a.cls": b"1"}), "holds no images"),
    "compressed": ("x.tar", b"\x1f\x8b" + bytes(600), "plain tar.*gunzip"),
    "no tar": ("x.tar", b"a few words" * 99, "plain tar.*Write it again"),
    "compressed by name": ("x.tar.gz", b"x", "Decompress it first"),
    "a missing shard": ("x-{0..1}.tar", None, "There is no file"),
}


@pytest.mark.parametrize("case", INVALID)
def test_a_shard_that_cannot_be_read_raises_with_advice(case, tmp_path):
    name, content, message = INVALID[case]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        open_source(tmp_path / name)


@pytest.fixture
def there():
    """A bucket in memory."""
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


def test_remote_shards_are_read_in_place(there):
    for k in range(3):
        there.pipe(f"/bucket/shard-{k}.tar", shard(5 * k, 5))
    for word in ("memory://bucket", "memory://bucket/*.tar", "memory://bucket/shard-{0..2}.tar"):
        source = open_source(word, labels=True)
        assert same(source) and source.class_names == ("0", "1", "2")
        assert source.read_range(5, 10) == [png(pixels(seed=i)) for i in range(5, 10)]


def test_remote_parquet_is_read_by_row_group(there, tmp_path):
    for k, split in enumerate(("train", "test")):
        file = parquet(
            tmp_path / "x.parquet",
            [pixels(seed=i) for i in range(15 * k, 15 * k + 15)],
            [i % 2 for i in range(15)],
            ["cat", "dog"],
            row_group_size=4,
        )
        there.pipe(f"/datasets/one/data/{split}-00000.parquet", file.read_bytes())
    assert list_splits("memory://datasets/one") == ("train", "test")
    source = open_source("memory://datasets/one")
    assert same(source) and source.class_names == ("cat", "dog")
    assert source.chunk_size == 4
    assert source.read_range(4, 8) == [png(pixels(seed=i)) for i in range(4, 8)]


def test_a_remote_list_is_relative_to_its_folder(there):
    there.pipe("/set/list.txt", b"in/0.png\tcat\nmemory://other/1.png\tdog\n")
    there.pipe("/set/in/0.png", png(pixels(seed=0)))
    there.pipe("/other/1.png", png(pixels(seed=1)))
    source = open_source("memory://set/list.txt")
    assert same(source, 2) and source.class_names == ("cat", "dog")


def test_remote_images_are_read_one_by_one(there):
    for i in range(3):
        there.pipe(f"/photos/{i}.png", png(pixels(seed=i)))
    assert same(open_source("memory://photos"), 3)


def test_a_changed_remote_shard_is_indexed_anew(there):
    there.pipe("/b/x.tar", shard(0, 3))
    assert same(open_source("memory://b/x.tar"), 3)
    there.pipe("/b/x.tar", shard(0, 2))
    assert same(open_source("memory://b/x.tar"), 2)


def test_a_missing_driver_is_named(monkeypatch):
    def refuse(word):
        raise ImportError("Install s3fs")

    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)
    with pytest.raises(UserError, match="pip install s3fs"):
        open_source("s3://bucket/x.tar")
    with pytest.raises(UserError, match="pip install huggingface_hub"):
        open_source("hf://datasets/owner/name")


def test_an_unknown_protocol_suggests_the_nearest():
    with pytest.raises(UserError, match='Did you mean "memory"'):
        open_source("memori://x")


def test_a_remote_folder_without_images_raises(there):
    there.pipe("/b/x.csv", b"1")
    with pytest.raises(UserError, match="holds 1 files, none of them"):
        open_source("memory://b")
