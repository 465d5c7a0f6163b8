"""Vectors of a source: those of `encode`, the same bytes after a stop and on two processes."""

import json
import os
import re
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import save_file
from torch import nn

import selfsight
from selfsight.cli.main import main
from selfsight.errors import UserError
from selfsight.terminal import progress
from selfsight.vectors import embed_images as embedding
from tests.dist.commands import commands, wait_until
from tests.exporters.saved_run import save_run
from tests.folders import images


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return images(tmp_path_factory.mktemp("data") / "photos", count=22)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("runs") / "mine", name="resnet8_narrow", image_size=32)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(embedding, "BATCH_SIZE", 4)


def embed(run, photos, out, **changes):
    return selfsight.embed(
        run, photos, quiet=True, **{"out": out, "shard_size": 8, "device": "cpu"} | changes
    )


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_vectors_are_those_of_encode_to_the_bit(run, photos, tmp_path, capsys):
    words = ["--shard-size", "8", "--device", "cpu", "--labels", "--out", str(tmp_path / "out")]
    main(["embed", str(run.path), str(photos), *words])
    said = capsys.readouterr().out
    assert re.search(r"Wrote 22 vectors of 64 numbers to .*: 3 of 3 shards, [\d,]+ images/s", said)
    names = {"pyarrow": __import__("pyarrow.parquet")}
    table = eval(said.partition("Read them: ")[2], names)  # as it says
    paths = table["path"].to_pylist()
    assert sorted(paths) == sorted(str(p.relative_to(photos)) for p in photos.rglob("*.jpg"))
    assert table["label"].to_pylist() == [path.partition("/")[0] for path in paths]
    vectors = np.stack(table["vector"].to_numpy())
    encoder = selfsight.load(run)
    expected = encoder.encode([photos / path for path in paths], batch_size=4)
    assert vectors.dtype == np.float32 and np.array_equal(vectors, expected.numpy())


def test_only_bf16_is_compiled_and_by_the_number_of_all_images(run, photos, tmp_path, monkeypatch):
    """By the missing ones, a job that goes on would write other bytes."""
    asked, sizes = [], []

    class Recorded(nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, x):
            sizes.append(len(x))
            return self.network(x)

    def record(network, batch_size, *, device, num_images, image_size):
        asked.append((batch_size, device.type, num_images, image_size))
        return Recorded(network)

    monkeypatch.setattr(embedding, "compile_if_it_pays", record)
    embed(run, photos, tmp_path / "fp32")
    assert asked == []
    embed(run, photos, tmp_path / "bf16", precision="bf16")
    whole = contents(tmp_path / "bf16")
    (tmp_path / "bf16/shard-00001.parquet").unlink()
    embed(run, photos, tmp_path / "bf16", precision="bf16")
    assert asked == [(4, "cpu", 22, 32)] * 2
    assert sizes == [4, 4, 4, 4, 4, 2, 4, 4]
    assert contents(tmp_path / "bf16") == whole


def test_a_stopped_job_goes_on_with_the_same_bytes(run, photos, tmp_path, monkeypatch):
    embed(run, photos, tmp_path / "whole")
    write = embedding._write

    def stop_at_the_second(shard, *rest):
        if shard.number == 1:
            raise KeyboardInterrupt
        write(shard, *rest)

    monkeypatch.setattr(embedding, "_write", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        embed(run, photos, tmp_path / "out")
    monkeypatch.setattr(embedding, "_write", write)
    assert sorted(contents(tmp_path / "out")) == ["_about.json", "shard-00000.parquet"]
    first = (tmp_path / "out/shard-00000.parquet").stat().st_mtime_ns
    assert embed(run, photos, tmp_path / "out")["shards_written"] == 2
    assert (tmp_path / "out/shard-00000.parquet").stat().st_mtime_ns == first
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert embed(run, photos, tmp_path / "out")["images_per_second"] is None  # nothing is missing


def test_npy_has_its_names_and_unreadable_images_are_left_out(run, photos, tmp_path, capsys):
    embed(run, photos, tmp_path / "whole")
    other = images(tmp_path / "photos", count=22)
    (other / "cats/broken.jpg").write_bytes(b"no image")
    last = bytes(sorted(other.glob("dogs/*"))[-1])
    os.rename(last, last.replace(b".jpg", b"\xff.jpg"))  # a name outside UTF-8
    found = embed(run, other, tmp_path / "out", format="npy")
    assert (found["images"], found["encoded"], found["skipped"]) == (23, 22, 1)
    assert "Left out 1 unreadable image: cats/broken.jpg" in capsys.readouterr().err
    assert "cats/broken.jpg" in json.loads((tmp_path / "out/_skipped-00000.json").read_text())
    arrays = [np.load(path) for path in sorted((tmp_path / "out").glob("*.npy"))]
    names = [json.loads(p.read_text()) for p in sorted((tmp_path / "out").glob("shard-*.json"))]
    assert [len(a) for a in arrays] == [len(n["path"]) for n in names] == [7, 8, 7]
    table = pq.read_table(tmp_path / "whole")
    paths = [p for n in names for p in n["path"]]
    assert paths[:-1] == table["path"].to_pylist()[:-1] and paths[-1].startswith("dogs/image 021")
    vectors = np.stack(table["vector"].to_numpy())
    np.testing.assert_allclose(np.concatenate(arrays), vectors, rtol=1e-5, atol=1e-6)


def test_a_folder_of_other_vectors_is_refused_until_overwrite(run, photos, tmp_path):
    saved = selfsight.load(run).backbone.state_dict()
    weights = {name: value.contiguous() for name, value in saved.items()}
    save_file(weights, tmp_path / "w.safetensors")
    spec = {"backbone": f"resnet8_narrow={tmp_path / 'w.safetensors'}", "image_size": 32}
    out = tmp_path / "out"
    embed(None, photos, out, **spec)
    before = contents(out)
    embed(run, photos, out)  # the same network and images
    with pytest.raises(UserError, match="holds other vectors: shard_size is 4 now and was 8"):
        embed(run, photos, out, shard_size=4)
    weights["conv1.weight"] += 1
    save_file(weights, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match="holds other vectors: weights is"):
        embed(None, photos, out, **spec)
    assert contents(out) == before
    embed(None, photos, out, **spec, overwrite=True)
    after = contents(out)
    assert before.keys() == after.keys() and all(before[k] != after[k] for k in before)
    with pytest.raises(UserError, match="holds other files"):
        embed(run, photos, photos / "cats")


def test_other_strides_and_other_labels_are_other_vectors(run, photos, tmp_path):
    saved = selfsight.load(run).backbone.state_dict()
    save_file(
        {name: value.contiguous() for name, value in saved.items()}, tmp_path / "w.safetensors"
    )
    spec = {"backbone": f"resnet8_narrow={tmp_path / 'w.safetensors'}", "image_size": 32}
    out = tmp_path / "out"
    embed(None, photos, out, **spec, stem="half")  # of the same weights
    with pytest.raises(UserError, match="holds other vectors: stem is lowres now and was half"):
        embed(None, photos, out, **spec, stem="lowres")
    table = pa.table({"image": [(photos / "cats" / "image 000.jpg").read_bytes()] * 4})
    for name, labels in (("fine", [0, 1, 2, 3]), ("coarse", [0, 0, 1, 1])):
        table = table.append_column(name, [labels])
    pq.write_table(table, tmp_path / "four.parquet")
    embed(run, tmp_path / "four.parquet", tmp_path / "four", label_column="fine")
    with pytest.raises(UserError, match="holds other vectors: labels is"):
        embed(run, tmp_path / "four.parquet", tmp_path / "four", label_column="coarse")


def test_search_uses_vectors_of_another_shard_size(run, photos, tmp_path):
    embed(run, photos, tmp_path / "out", shard_size=5)
    before = contents(tmp_path / "out")
    query = photos / "cats" / "image 000.jpg"
    settings = {"vectors": tmp_path / "out", "device": "cpu", "quiet": True}
    assert selfsight.search(run, photos, query, **settings)["similar"]
    assert contents(tmp_path / "out") == before


def test_mistakes_get_a_sentence(run, photos, tmp_path, capsys):
    for words, sentence in (
        ([run.path], "Give RUN and DATA"),
        ([run.path, photos, "--backbone", "timm:resnet18"], "Give DATA: "),
        ([tmp_path / "none", photos], "is not a run folder"),
        ([run.path, tmp_path / "none"], "There is no file or folder"),
        ([run.path, photos, "--split", "test"], "split"),
        ([run.path, photos, "--shard-size", "0"], "shard_size is 0"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["embed", *map(str, words)])
        assert stop.value.code == 2 and sentence in capsys.readouterr().err
    with pytest.raises(UserError, match="/proc/out cannot be created: No such file"):
        embed(run, photos, "/proc/out")


def test_progress_says_how_many_images_a_second(capsys, monkeypatch):
    now = iter(range(0, 1000, 20))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(now)))
    with progress.DelayedProgress("embedding", 1000, unit="images") as bar:
        bar.advance(100)
        bar.advance(100)
    assert "embedding: 200/1000, 5 images/s, 160 s left" in capsys.readouterr().err


@pytest.mark.slow
def test_two_processes_give_the_same_vectors_and_a_killed_one_costs_only_time(run, tmp_path):
    def words(out):
        settings = ["--shard-size", 16, "--image-size", 16, "--device", "cpu"]
        return ["embed", run.path, "digits", *settings, "--out", tmp_path / out]

    with commands(tmp_path, words("one")) as started:
        assert started[0].wait() == 0, started[0].said
    expected = contents(tmp_path / "one")
    shards = {name for name in expected if name.startswith("shard")}
    with commands(tmp_path, words("two"), words("two")) as started:
        wait_until(lambda: (tmp_path / "two/shard-00003.parquet").exists())
        os.kill(started[1].pid, signal.SIGKILL)
        started[1].wait()
        assert started[0].wait() == 1
        assert "Process 1 of 2" in started[0].said
    left = contents(tmp_path / "two")
    assert 3 <= len(shards & left.keys()) < len(shards)
    with commands(tmp_path, words("two"), words("two")) as started:
        assert [command.wait() for command in started] == [0, 0], started[0].said
    assert contents(tmp_path / "two") == expected
    for name in shards & left.keys():
        assert left[name] == expected[name]
