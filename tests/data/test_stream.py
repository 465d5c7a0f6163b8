import io
import itertools
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from selfsight.data import Loader, load, open_images, open_source, planned
from selfsight.data.source import Computed, Source
from selfsight.data.stream import TRIES, Streamed
from selfsight.errors import UserError
from tests.data.made import encoded, parquet, pixels, png, write

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "selfsight"


@pytest.fixture
def shards(tmp_path):
    """Image i is i rows high; 40 of them in three shards."""
    for k, (first, behind) in enumerate(((0, 11), (11, 30), (30, 40))):
        with tarfile.open(tmp_path / f"{k}.tar", "w") as out:
            for i in range(first, behind):
                for name, data in ((f"{i:02d}.png", high(i)), (f"{i:02d}.cls", str(i).encode())):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    out.addfile(info, io.BytesIO(data))
    return tmp_path


def high(i):
    return png(pixels(i + 1, 4, seed=i))


def of_pieces(source, piece=4):
    return Source(**{**vars(source), "group": piece})


def streamed(source, **settings):
    return Streamed(source, **{"store_size": 64, "channels": 3, "workers": 2} | settings)


def same(a, b):
    assert torch.equal(a.index, b.index) and a.epoch == b.epoch
    assert torch.equal(a.images.padded(), b.images.padded())
    assert torch.equal(a.images.sizes, b.images.sizes)
    assert torch.equal(a.labels, b.labels)
    return True


@pytest.mark.parametrize("piece", [1, 4])
def test_a_stream_gives_the_pixels_that_are_kept(shards, piece):
    source = of_pieces(open_source(shards), piece)
    kept = load(source, store_size=16)
    index = torch.tensor([3, 39, 0, 12, 12])
    for a, b in zip(streamed(source, store_size=16).batch(index), kept.batch(index), strict=True):
        assert torch.equal(a, b)


def test_batches_from_any_step_equal_those_of_a_loader_that_began_earlier(shards):
    source = of_pieces(open_source(shards))
    settings = dict(batch_size=8, seed=3)
    whole = list(itertools.islice(Loader(streamed(source), **settings).batches(0), 12))
    for start in (1, 4, 7):
        fresh = Loader(streamed(source), **settings).batches(start)
        for a, b in zip(whole[start : start + 4], fresh, strict=False):
            assert same(a, b)
    for raw in whole:
        assert torch.equal(raw.images.sizes[:, 0], raw.index + 1)
        assert torch.equal(raw.labels, raw.index)


@pytest.mark.parametrize("world_size", [2, 4])
def test_processes_together_stream_what_one_streams(shards, world_size):
    source = of_pieces(open_source(shards))
    one = Loader(streamed(source), batch_size=8, seed=0)
    parts = [
        Loader(streamed(source), batch_size=8, seed=0, rank=r, world_size=world_size)
        for r in range(world_size)
    ]
    for step in (0, 4, 9):
        together = torch.cat([part.indices(step)[1] for part in parts])
        assert torch.equal(together, one.indices(step)[1])


def test_neighbors_are_read_once_an_epoch(shards):
    source = open_source(shards)
    runs = []

    def read_run(first, behind):
        runs.append((first, behind))
        return source.read_run(first, behind)

    watched = Source(**{**vars(source), "group": 4, "read_run": read_run, "read": lambda i: 1 / 0})
    loader = Loader(streamed(watched), batch_size=8, seed=0)
    list(itertools.islice(loader.batches(0), loader.steps_per_epoch))
    assert len(runs) == len(set(runs)) == 3 + 5 + 3
    assert all(first < behind <= first + 4 for first, behind in runs)


def test_parquet_is_streamed_by_row_group(tmp_path):
    parquet(tmp_path / "x.parquet", [high(i) for i in range(20)], list(range(20)), row_group_size=5)
    source = open_source(tmp_path / "x.parquet")
    assert source.group == 5
    for raw in itertools.islice(Loader(streamed(source), batch_size=10, seed=0).batches(0), 3):
        assert torch.equal(raw.images.sizes[:, 0], raw.index + 1)
        assert torch.equal(raw.labels, raw.index)


def room(n):
    return torch.empty(n, dtype=torch.uint8)


def broken(tmp_path, bad, count=128):
    """Images of a folder, of which image i is i % 50 + 1 rows high and some are none."""
    for i in range(count):
        write(tmp_path / f"{i:03d}.png", pixels(i % 50 + 1, 2))
    for i in bad:
        (tmp_path / f"{i:03d}.png").write_bytes(b"no image" if i % 2 else b"")
    return open_source(tmp_path)


@pytest.mark.parametrize("decoder", ["cpu", "nvjpeg"])
def test_an_unreadable_image_is_replaced_by_one_that_the_batch_lacks_and_named(tmp_path, decoder):
    images = streamed(broken(tmp_path, [2, 5, 7], 12), decoder=decoder)
    batch, index = images.packed(torch.arange(8), room)
    assert [i for i in index.tolist() if i < 8] == [0, 1, 3, 4, 6]
    assert len(index.unique()) == 8
    assert (batch.sizes[:, 0] - 1).tolist() == index.tolist()
    assert {name for name, _ in images.skipped} == {"002.png", "005.png", "007.png"}


def test_a_set_that_the_batch_holds_wholly_repeats_what_it_has(tmp_path):
    images = streamed(broken(tmp_path, [2, 5], 6))
    batch, index = images.packed(torch.arange(6), room)
    assert set(index.tolist()) == {0, 1, 3, 4}
    assert (batch.sizes[:, 0] - 1).tolist() == index.tolist()


def test_what_stands_in_for_unreadable_ones_depends_on_the_batch_alone(tmp_path):
    source = broken(tmp_path, [*range(30, 50), *range(1, 128, 9)])
    settings = dict(batch_size=32, seed=1)
    whole = list(itertools.islice(Loader(streamed(source), **settings).batches(0), 8))
    for raw in whole:
        assert len(raw.index.unique()) == 32
    for start in (1, 6):
        images = streamed(source, workers=1)
        fresh = Loader(images, **settings).batches(start)
        for a, b in zip(whole[start:], fresh, strict=False):
            assert torch.equal(a.index, b.index)
            assert torch.equal(a.images.padded(), b.images.padded())


def test_many_unreadable_neighbors_do_not_end_a_run(tmp_path):
    source = broken(tmp_path, range(40, 100))
    seen = [
        raw.index
        for raw in itertools.islice(Loader(streamed(source), batch_size=16, seed=0).batches(0), 16)
    ]
    assert not set(torch.cat(seen).tolist()) & set(range(40, 100))


def test_nothing_readable_ends_the_run():
    def read(i):
        raise OSError("the disk is gone")

    source = Source("x", Computed(100, str), None, (), read)
    with pytest.raises(UserError, match=f"{TRIES} of {TRIES} images of x .* the disk is gone"):
        streamed(source).batch(torch.arange(2))


def test_a_few_readable_ones_do_not_make_a_run():
    def read(i):
        if i % 10:
            raise OSError("the disk is gone")
        return np.zeros((2, 2, 3), np.uint8)

    source = Source("x", Computed(1000, str), None, (), read)
    with pytest.raises(UserError, match=r"\d\d of 80 images of x tried in a row"):
        streamed(source).batch(torch.arange(200))


def test_an_error_of_a_reader_reaches_the_loop():
    source = Source("x", Computed(100, str), None, (), lambda i: b"")
    with pytest.raises(UserError, match="in a row"):
        next(Loader(streamed(source), batch_size=4, seed=0).batches(0))


def test_resident_data_never_wait_and_streams_count_what_they_wait(shards):
    kept = Loader(load(open_source(shards), store_size=8), batch_size=8, seed=0)
    first, second = itertools.islice(kept.batches(0), 2)
    assert kept.resident and kept.waited == 0
    assert first.images.flat is second.images.flat
    assert first.images.largest == second.images.largest
    loader = Loader(streamed(open_source(shards)), batch_size=8, seed=0)
    next(loader.batches(0))
    assert not loader.resident and loader.waited > 0


def settled(source, **settings):
    return planned(source, store_size=16, **settings)


def test_small_sets_are_kept_and_told_why(shards):
    made = settled(open_source(shards))
    assert (made.keep, made.decoder) == ("pixels", "cpu")
    assert "fits in memory" in made.reasons["data.keep"]


def test_sets_that_fit_nowhere_are_streamed(shards, monkeypatch):
    monkeypatch.setattr("selfsight.data.storage_plan.free_memory", lambda: 0)
    assert settled(open_source(shards)).keep == "pixels"  # the disk has room
    monkeypatch.setenv("SELFSIGHT_CACHE_GIB", "0")
    assert settled(open_source(shards)).keep == "stream"
    assert settled(open_source(shards), keep="pixels").keep == "pixels"


def test_what_an_earlier_run_decoded_is_used(shards):
    load(open_source(shards), store_size=16, channels=3, budget_bytes=0)
    made = settled(open_source(shards), channels=3)
    assert made.reasons["data.keep"] == "Decoded by an earlier run."


def test_a_plan_says_how_images_are_opened(shards):
    source = open_source(shards)
    settings = dict(decoder="cpu", store_size=16, channels=None, device=CPU)
    assert isinstance(open_images(source, keep="stream", **settings), Streamed)
    assert open_images(source, keep="pixels", **settings).kept


def test_nvjpeg_without_a_gpu_is_refused(shards):
    with pytest.raises(UserError, match="runs on a CUDA device"):
        settled(open_source(shards), decoder="nvjpeg")


def test_a_cap_that_is_no_number_is_refused(shards, monkeypatch):
    monkeypatch.setenv("SELFSIGHT_CACHE_GIB", "much")
    with pytest.raises(UserError, match="SELFSIGHT_CACHE_GIB is 'much'"):
        load(open_source(shards), store_size=8, budget_bytes=0)


def test_the_cache_keeps_to_its_cap_and_gives_up_what_was_not_used_for_longest(
    tmp_path, own_cache, monkeypatch
):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    sources = []
    for name in "abc":
        for i in range(4):
            write(tmp_path / name / f"{i}.png", noise)
        sources.append(open_source(tmp_path / name))
    one = 4 * noise.size
    monkeypatch.setenv("SELFSIGHT_CACHE_GIB", str(2.5 * one / 2**30))
    settings = dict(store_size=64, budget_bytes=0)
    a, _ = load(sources[0], **settings), load(sources[1], **settings)
    load(sources[0], **settings)  # used again: b is now the oldest
    load(sources[2], **settings)
    assert len(list(own_cache.glob("*.pixels"))) == len(list(own_cache.glob("*.npz"))) == 2
    broken = [Source(**{**vars(source), "read": lambda i: 1 / 0}) for source in sources]
    load(broken[0], **settings)
    load(broken[2], **settings)
    with pytest.raises(ZeroDivisionError):
        load(broken[1], **settings)
    assert a.batch(torch.tensor([0]))[0].any()
    monkeypatch.setenv("SELFSIGHT_CACHE_GIB", str(0.5 * one / 2**30))
    with pytest.raises(UserError, match="Raise SELFSIGHT_CACHE_GIB"):
        load(sources[1], **settings)


def test_of_several_processes_one_decodes_and_all_map(shards, own_cache, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    source = open_source(shards)
    first = load(source, store_size=16)
    assert len(list(own_cache.glob("*.pixels"))) == 1
    monkeypatch.setenv("LOCAL_RANK", "1")
    idle = Source(**{**vars(source), "read": lambda i: 1 / 0})
    second = load(idle, store_size=16)
    assert torch.equal(first.flat, second.flat)


@pytest.mark.gpu
@pytest.mark.parametrize("decoder", ["cpu", "nvjpeg"])
def test_a_stream_to_the_gpu_equals_one_to_the_cpu(tmp_path, decoder):
    for i in range(24):
        smooth = Image.fromarray(pixels(6, 8, seed=i)).resize((120, 90 + i), 3)
        (tmp_path / f"{i:02d}.jpg").write_bytes(encoded(smooth, "JPEG", quality=95))
    source = open_source(tmp_path)
    here = Loader(streamed(source), batch_size=8, seed=0).batches(2)
    images = streamed(source, decoder=decoder, device="cuda")
    there = Loader(images, batch_size=8, seed=0, device="cuda").batches(2)
    for a, b in itertools.islice(zip(here, there, strict=False), 6):
        assert b.index.is_cuda and torch.equal(a.index, b.index.cpu())
        assert b.images.flat.is_cuda
        difference = a.images.padded().int() - b.images.padded().cpu().int()
        assert difference.abs().float().mean() < (1e-9 if decoder == "cpu" else 2)


@pytest.mark.gpu
def test_nvjpeg_fills_the_cache_within_few_gray_levels_of_the_cpu(tmp_path):
    for i in range(8):
        smooth = Image.fromarray(pixels(6, 8, seed=i)).resize((160, 120), 3)
        (tmp_path / f"{i}.jpg").write_bytes(encoded(smooth, "JPEG", quality=95))
    settings = dict(store_size=60, channels=3)
    cpu, gpu = (load(open_source(tmp_path), decoder=d, **settings) for d in ("cpu", "nvjpeg"))
    assert torch.equal(cpu.heights, gpu.heights)
    assert (cpu.flat.int() - gpu.flat.int()).abs().float().mean() < 2
