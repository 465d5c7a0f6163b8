import io
import itertools
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from selfsight.data import (
    CachedImages,
    Loader,
    StreamedImages,
    load_images,
    open_images,
    open_source,
    plan_storage,
)
from selfsight.data.replace_unreadable import MIN_FAILURES
from selfsight.data.sources.source import LazyNames, Source
from selfsight.data.storage_plan import StorageSettings, choose_decoder
from selfsight.errors import UserError
from tests.data.image_files import encoded, parquet, pixels, png, read_padded, write

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
    return Source(**{**vars(source), "chunk_size": piece})


def streamed(source, **settings):
    return StreamedImages(source, **{"store_size": 64, "channels": 3, "workers": 2} | settings)


def same(a, b):
    assert torch.equal(a.index, b.index) and a.epoch == b.epoch
    assert torch.equal(a.images.padded(), b.images.padded())
    assert torch.equal(a.images.sizes, b.images.sizes)
    assert torch.equal(a.labels, b.labels)
    return True


@pytest.mark.parametrize("piece", [1, 4])
def test_a_stream_gives_the_same_pixels_as_a_cache(shards, piece):
    source = of_pieces(open_source(shards), piece)
    kept = load_images(source, store_size=16)
    index = torch.tensor([3, 39, 0, 12, 12])
    for a, b in zip(
        read_padded(streamed(source, store_size=16), index), read_padded(kept, index), strict=True
    ):
        assert torch.equal(a, b)


def test_batches_from_any_step_equal_those_of_a_loader_that_started_earlier(shards):
    source = of_pieces(open_source(shards))
    settings = dict(batch_size=8, seed=3)
    whole = list(itertools.islice(Loader(streamed(source), **settings).batches(0), 10))
    for start in (1, 4, 6):
        fresh = Loader(streamed(source), **settings).batches(start)
        for a, b in zip(whole[start : start + 4], fresh, strict=False):
            assert same(a, b)
    for raw in whole:
        assert torch.equal(raw.images.sizes[:, 0], raw.index + 1)
        assert torch.equal(raw.labels, raw.index)


@pytest.mark.parametrize("world_size", [2, 4])
def test_several_processes_share_the_stream_of_one(shards, world_size):
    source = of_pieces(open_source(shards))
    one = Loader(streamed(source), batch_size=8, seed=0)
    parts = [
        Loader(streamed(source), batch_size=8, seed=0, rank=r, world_size=world_size)
        for r in range(world_size)
    ]
    for step in (0, 4, 9):
        together = torch.cat([part.indices(step)[1] for part in parts])
        assert torch.equal(together, one.indices(step)[1])


def test_each_chunk_is_read_once_an_epoch(shards):
    source = open_source(shards)
    runs = []

    def read_range(first, behind):
        runs.append((first, behind))
        return source.read_range(first, behind)

    watched = Source(
        **{**vars(source), "chunk_size": 4, "read_range": read_range, "read": lambda i: 1 / 0}
    )
    loader = Loader(streamed(watched), batch_size=8, seed=0)
    list(itertools.islice(loader.batches(0), loader.steps_per_epoch))
    assert len(runs) == len(set(runs)) == 3 + 5 + 3
    assert all(first < behind <= first + 4 for first, behind in runs)


def test_parquet_is_streamed_by_row_group(tmp_path):
    parquet(tmp_path / "x.parquet", [high(i) for i in range(20)], list(range(20)), row_group_size=5)
    source = open_source(tmp_path / "x.parquet")
    assert source.chunk_size == 5
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
def test_an_unreadable_image_is_recorded_and_replaced_by_one_outside_the_batch(tmp_path, decoder):
    images = streamed(broken(tmp_path, [2, 5, 7], 12), decoder=decoder)
    batch, index = images.pack(torch.arange(8), room)
    assert [i for i in index.tolist() if i < 8] == [0, 1, 3, 4, 6]
    assert len(index.unique()) == 8
    assert (batch.sizes[:, 0] - 1).tolist() == index.tolist()
    assert {name for name, _ in images.skipped} == {"002.png", "005.png", "007.png"}


def test_if_the_batch_is_the_whole_data_set_a_replacement_repeats_an_image(tmp_path):
    images = streamed(broken(tmp_path, [2, 5], 6))
    batch, index = images.pack(torch.arange(6), room)
    assert set(index.tolist()) == {0, 1, 3, 4}
    assert (batch.sizes[:, 0] - 1).tolist() == index.tolist()


def test_replacements_depend_on_the_batch_alone(tmp_path):
    source = broken(tmp_path, [*range(30, 50), *range(1, 128, 9)])
    settings = dict(batch_size=32, seed=1)
    whole = list(itertools.islice(Loader(streamed(source), **settings).batches(0), 6))
    for raw in whole:
        assert len(raw.index.unique()) == 32
    for start in (3, 5):
        images = streamed(source, workers=1)
        fresh = Loader(images, **settings).batches(start)
        for a, b in zip(whole[start:], fresh, strict=False):
            assert torch.equal(a.index, b.index)
            assert torch.equal(a.images.padded(), b.images.padded())


def test_many_unreadable_neighbors_do_not_end_a_run(tmp_path):
    source = broken(tmp_path, range(40, 100))
    seen = [
        raw.index
        for raw in itertools.islice(Loader(streamed(source), batch_size=16, seed=0).batches(0), 8)
    ]
    assert not set(torch.cat(seen).tolist()) & set(range(40, 100))


def test_a_data_set_without_readable_images_raises():
    def read(i):
        raise OSError("the disk is gone")

    source = Source("x", LazyNames(100, str), None, (), read)
    with pytest.raises(
        UserError, match=f"{MIN_FAILURES} of {MIN_FAILURES} images of x .* the disk is gone"
    ):
        read_padded(streamed(source), torch.arange(2))


def test_a_data_set_with_few_readable_images_raises():
    def read(i):
        if i % 10:
            raise OSError("the disk is gone")
        return np.zeros((2, 2, 3), np.uint8)

    source = Source("x", LazyNames(1000, str), None, (), read)
    with pytest.raises(UserError, match=r"\d\d of 80 images of x tried in a row"):
        read_padded(streamed(source), torch.arange(200))


def test_an_error_while_reading_is_raised_by_the_loader():
    source = Source("x", LazyNames(100, str), None, (), lambda i: b"")
    with pytest.raises(UserError, match="in a row"):
        next(Loader(streamed(source), batch_size=4, seed=0).batches(0))


def test_resident_images_never_wait_and_streams_measure_their_waiting(shards):
    kept = Loader(load_images(open_source(shards), store_size=8), batch_size=8, seed=0)
    first, second = itertools.islice(kept.batches(0), 2)
    assert kept.resident and kept.wait_seconds == 0
    assert first.images.flat is second.images.flat
    assert first.images.largest == second.images.largest
    loader = Loader(streamed(open_source(shards)), batch_size=8, seed=0)
    next(loader.batches(0))
    assert not loader.resident and loader.wait_seconds > 0


def settled(source, device="cpu", **settings):
    return plan_storage(source, StorageSettings(store_size=16, **settings), device)


def test_a_small_data_set_is_cached_with_the_reason(shards):
    made = settled(open_source(shards))
    assert (made.storage, made.decoder) == ("cache", "cpu")
    assert "fits in memory" in made.reasons["data.storage"]


def test_a_data_set_that_fits_nowhere_is_streamed(shards, monkeypatch):
    monkeypatch.setattr("selfsight.data.storage_plan.free_memory", lambda: 0)
    assert settled(open_source(shards)).storage == "cache"  # the disk has room
    monkeypatch.setenv("SELFSIGHT_CACHE_GIB", "0")
    assert settled(open_source(shards)).storage == "stream"
    assert settled(open_source(shards), storage="cache").storage == "cache"


def test_without_cached_pixels_no_file_is_looked_at_to_plan(shards):
    def look():
        raise AssertionError("looked at every file")

    assert settled(replace(open_source(shards), fingerprint=look)).storage == "cache"


def test_pixels_cached_by_an_earlier_run_are_used(shards):
    load_images(open_source(shards), store_size=16, channels=3, budget_bytes=0)
    made = settled(open_source(shards), channels=3)
    assert made.reasons["data.storage"] == "Decoded by an earlier run."


def test_images_are_opened_as_planned(shards):
    source = open_source(shards)
    for storage, kind in (("stream", StreamedImages), ("cache", CachedImages)):
        settings = StorageSettings(storage=storage, decoder="cpu", store_size=16)
        assert isinstance(open_images(source, settings, CPU), kind)


def test_nvjpeg_without_a_gpu_raises(shards):
    with pytest.raises(UserError, match="runs on a CUDA device"):
        settled(open_source(shards), decoder="nvjpeg")


JPEG = encoded(Image.fromarray(pixels()), "JPEG")


@pytest.mark.parametrize(
    ("files", "storage", "device", "cpus", "decoder"),
    [
        ([JPEG, JPEG, png(pixels())], "stream", "cuda", 4, "nvjpeg"),
        ([JPEG, JPEG, png(pixels())], "stream", "cuda", 8, "cpu"),  # enough CPUs
        ([JPEG], "stream", "cpu", 4, "cpu"),  # no GPU
        ([JPEG], "cache", "cuda", 4, "cpu"),  # decoded only once
        ([JPEG, png(pixels()), png(pixels())], "stream", "cuda", 4, "cpu"),  # few JPEG files
        ([], "stream", "cuda", 4, "cpu"),
    ],
)
def test_auto_uses_nvjpeg_for_jpeg_streams_to_a_gpu_with_few_cpus(
    files, storage, device, cpus, decoder
):
    assert choose_decoder(files, storage, 3, torch.device(device), cpus)[0] == decoder


def test_a_cache_limit_that_is_not_a_number_raises(shards, monkeypatch):
    monkeypatch.setenv("SELFSIGHT_CACHE_GIB", "much")
    with pytest.raises(UserError, match="SELFSIGHT_CACHE_GIB is 'much'"):
        load_images(open_source(shards), store_size=8, budget_bytes=0)


def test_the_cache_keeps_its_limit_and_evicts_the_least_recently_used(
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
    a, _ = load_images(sources[0], **settings), load_images(sources[1], **settings)
    load_images(sources[0], **settings)  # used again: b is now the oldest
    load_images(sources[2], **settings)
    assert len(list(own_cache.glob("*.pixels"))) == len(list(own_cache.glob("*.sizes"))) == 2
    broken = [Source(**{**vars(source), "read": lambda i: 1 / 0}) for source in sources]
    load_images(broken[0], **settings)
    load_images(broken[2], **settings)
    with pytest.raises(ZeroDivisionError):
        load_images(broken[1], **settings)
    assert read_padded(a, torch.tensor([0]))[0].any()
    monkeypatch.setenv("SELFSIGHT_CACHE_GIB", str(0.5 * one / 2**30))
    with pytest.raises(UserError, match="Raise SELFSIGHT_CACHE_GIB"):
        load_images(sources[1], **settings)


def test_one_of_several_processes_decodes_and_all_map_its_file(shards, own_cache, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    source = open_source(shards)
    first = load_images(source, store_size=16)
    assert len(list(own_cache.glob("*.pixels"))) == 1
    monkeypatch.setenv("LOCAL_RANK", "1")
    idle = Source(**{**vars(source), "read": lambda i: 1 / 0})
    second = load_images(idle, store_size=16)
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
    cpu, gpu = (
        load_images(open_source(tmp_path), decoder=d, **settings) for d in ("cpu", "nvjpeg")
    )
    assert torch.equal(cpu.heights, gpu.heights)
    assert (cpu.flat.int() - gpu.flat.int()).abs().float().mean() < 2
