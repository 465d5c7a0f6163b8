import itertools
import threading

import pytest
import torch

from selfsight.data import CachedImages, Loader
from selfsight.data.loader import prefetch
from selfsight.errors import UserError

COUNT, BATCH = 53, 12


@pytest.fixture(scope="module")
def images():
    """Image i has the value i everywhere and the label i."""
    values = torch.arange(COUNT, dtype=torch.uint8)
    return CachedImages(
        values.repeat_interleave(4),
        torch.full((COUNT,), 2),
        torch.full((COUNT,), 2),
        channels=1,
        names=[str(i) for i in range(COUNT)],
        labels=torch.arange(COUNT),
    )


def loader(images, **settings):
    return Loader(images, **{"batch_size": BATCH, "seed": 0} | settings)


def epoch(made, number):
    steps = made.steps_per_epoch
    return torch.cat([made.indices(number * steps + i)[1] for i in range(steps)])


def test_an_epoch_has_no_image_twice(images):
    made = loader(images)
    assert made.steps_per_epoch == COUNT // BATCH
    for number in range(3):
        seen = epoch(made, number)
        assert len(seen.unique()) == len(seen) == COUNT // BATCH * BATCH


def test_every_image_comes_in_some_epoch(images):
    made = loader(images)
    assert len(torch.cat([epoch(made, n) for n in range(8)]).unique()) == COUNT


def test_epochs_and_seeds_differ(images):
    made = loader(images)
    assert not torch.equal(epoch(made, 0), epoch(made, 1))
    assert not torch.equal(epoch(made, 0), epoch(loader(images, seed=1), 0))


@pytest.mark.parametrize("world_size", [2, 4])
def test_several_processes_share_the_batches_of_one(images, world_size):
    parts = [loader(images, rank=r, world_size=world_size) for r in range(world_size)]
    for step in (0, 3, 7):
        together = torch.cat([part.indices(step)[1] for part in parts])
        assert torch.equal(together, loader(images).indices(step)[1])


def test_batches_resume_at_any_step(images):
    made = loader(images)
    for start in (0, 3, 6):
        for step, raw in enumerate(itertools.islice(made.batches(start), 3), start):
            number, index = made.indices(step)
            assert raw.epoch == number == step // made.steps_per_epoch
            assert torch.equal(raw.index, index) and torch.equal(raw.labels, index)
            assert torch.equal(raw.images.padded()[:, 0, 0, 0].long(), index)


def test_prefetching_keeps_the_items_and_ends_its_thread():
    items = prefetch(iter(range(100)), 3)
    assert list(itertools.islice(items, 5)) == [0, 1, 2, 3, 4]
    items.close()
    assert "batches" not in {thread.name for thread in threading.enumerate()}
    assert list(prefetch(iter(range(7)), 3)) == list(range(7))


def test_an_error_while_prefetching_is_raised():
    items = prefetch((1 // (2 - i) for i in range(5)), 2)
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(items)


def test_fewer_than_two_batches_raise_with_the_largest_batch_size(images):
    with pytest.raises(UserError, match=r"53 images, .* need 64\. Use --batch-size 26"):
        loader(images, batch_size=32)
    loader(images, batch_size=26)
    with pytest.raises(UserError, match="--batch-size 24"):
        loader(images, batch_size=32, world_size=4)


def test_the_error_for_few_images_counts_skipped_ones(images):
    few = CachedImages(
        torch.zeros(3, dtype=torch.uint8),
        torch.ones(3, dtype=torch.int64),
        torch.ones(3, dtype=torch.int64),
        channels=1,
        names=["a", "b", "c"],
        skipped=[("d", "broken")],
    )
    with pytest.raises(UserError, match=r"3 images \(1 more could not be read\).*Add images"):
        loader(few)


def test_a_batch_size_that_processes_cannot_share_raises(images):
    with pytest.raises(UserError, match="multiple of 5"):
        loader(images, world_size=5)


@pytest.mark.gpu
def test_batches_on_the_gpu_equal_those_on_the_cpu(images):
    there = loader(images, device="cuda").batches(2)
    for here, raw in itertools.islice(zip(loader(images).batches(2), there, strict=False), 6):
        assert raw.index.is_cuda
        assert torch.equal(raw.images.padded().cpu(), here.images.padded())
        assert torch.equal(raw.index.cpu(), here.index)
