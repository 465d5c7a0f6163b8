import numpy as np
import pytest
import torch
from PIL import Image

from selfsight.data import load_images, open_source
from selfsight.errors import UserError
from tests.data.image_files import encoded, pixels, read_padded, read_ragged, write

SIZES = [(12, 16), (20, 9), (16, 16), (5, 31)]


@pytest.fixture
def ragged(tmp_path):
    for i, (height, width) in enumerate(SIZES):
        write(tmp_path / f"{'ab'[i % 2]}/{i}.png", pixels(height, width, seed=i))
    return tmp_path


def originals(source, index):
    return [pixels(*SIZES[i], seed=i).transpose(2, 0, 1) for i in index]


def numbers(images):
    return [int(name.split("/")[1].split(".")[0]) for name in images.names]


def test_a_padded_batch_holds_the_originals(ragged):
    images = load_images(open_source(ragged), store_size=64)
    order = torch.tensor([3, 0, 0, 2, 1])
    batch, sizes = read_padded(images, order)
    assert batch.shape == (5, 3, 20, 31)
    for out, (h, w), i in zip(batch, sizes.tolist(), order.tolist(), strict=True):
        one = numbers(images)[i]
        assert (h, w) == SIZES[one]
        expected = pixels(h, w, seed=one).transpose(2, 0, 1)
        np.testing.assert_array_equal(out[:, :h, :w].numpy(), expected)
        assert not out[:, h:].any() and not out[:, :, w:].any()


def test_gathering_equals_copying(ragged):
    images = load_images(open_source(ragged), store_size=64)
    index = torch.tensor([2, 3, 1, 0, 3])
    batch = read_ragged(images, index)
    copied, gathered = batch._pad_by_copy(), batch._pad_by_gather()
    torch.testing.assert_close(gathered, copied, rtol=0, atol=0)


def test_images_of_one_size_are_indexed(tmp_path):
    for i in range(3):
        write(tmp_path / f"{i}.png", pixels(seed=i))
    images = load_images(open_source(tmp_path), store_size=64)
    batch, sizes = read_padded(images, torch.tensor([2, 0]))
    np.testing.assert_array_equal(batch[0].numpy(), pixels(seed=2).transpose(2, 0, 1))
    assert sizes.tolist() == [[12, 16]] * 2
    assert images.num_bytes == 3 * 3 * 12 * 16


def test_unreadable_images_are_recorded_and_labels_stay_aligned(ragged):
    whole = encoded(Image.fromarray(pixels(64, 64)), "JPEG")
    (ragged / "a/1.jpg").write_bytes(whole[:600])
    (ragged / "b/0.png").write_bytes(b"")
    images = load_images(open_source(ragged, labels=True), store_size=64)
    skipped = dict(images.skipped)
    assert set(skipped) == {"a/1.jpg", "b/0.png"}
    assert "truncated" in skipped["a/1.jpg"].lower() and "empty" in skipped["b/0.png"]
    assert [images.class_names[y] for y in images.labels] == [n[0] for n in images.names]
    assert len(images) == len(SIZES)


def test_a_source_without_readable_images_raises(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.jpg").write_bytes(b"no")
    with pytest.raises(UserError, match=r"All 3 images .* 0\.jpg \(not an image"):
        load_images(open_source(tmp_path), store_size=64)


def test_a_listed_file_that_is_missing_is_skipped(tmp_path):
    write(tmp_path / "a.png", pixels())
    (tmp_path / "list.txt").write_text("a.png\nb.png\n")
    images = load_images(open_source(tmp_path / "list.txt"), store_size=64)
    assert images.skipped == [("b.png", "there is no such file")]


@pytest.fixture
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "selfsight"


def test_pixels_beyond_the_budget_are_mapped_and_loaded_again(ragged, cache):
    (ragged / "b/0.png").write_bytes(b"")
    settings = dict(store_size=10)
    small = load_images(open_source(ragged, labels=True), **settings)
    assert not cache.exists()
    mapped = load_images(open_source(ragged, labels=True), budget_bytes=700, **settings)
    assert sorted(p.suffix for p in cache.iterdir()) == [".pixels", ".sizes"]
    source = open_source(ragged, labels=True)
    again = load_images(source.__class__(**{**vars(source), "read": lambda i: 1 / 0}), **settings)
    for other in (mapped, again):
        assert (other.names, other.skipped) == (small.names, small.skipped)
        assert torch.equal(other.labels, small.labels)
        for a, b in zip(
            read_padded(small, torch.arange(4)), read_padded(other, torch.arange(4)), strict=True
        ):
            assert torch.equal(a, b)


@pytest.mark.usefixtures("cache")
def test_changed_files_are_decoded_anew(ragged):
    settings = dict(store_size=64, budget_bytes=0)
    load_images(open_source(ragged), **settings)
    write(ragged / "a/0.png", pixels(7, 7))
    assert load_images(open_source(ragged), **settings).heights[0] == 7


def test_built_in_images_keep_their_channels():
    assert load_images(open_source("digits"), store_size=64).channels == 1
    assert load_images(open_source("digits", split="test"), store_size=64, channels=3).channels == 3


def test_an_impossible_number_of_channels_raises(ragged):
    with pytest.raises(UserError, match="it has 3 channels, not 2"):
        load_images(open_source(ragged), store_size=64, channels=2)


@pytest.mark.gpu
def test_a_batch_is_the_same_on_the_gpu(ragged):
    images = load_images(open_source(ragged), store_size=64)
    there = images.to("cuda")
    for a, b in zip(
        read_padded(images, torch.arange(4)), read_padded(there, torch.arange(4)), strict=True
    ):
        assert torch.equal(a, b.cpu())
