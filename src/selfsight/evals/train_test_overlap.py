"""Find test images that are also training images: they measure memory, not the encoder."""

import hashlib
from collections import Counter
from collections.abc import Iterator

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from selfsight.data import CachedImages
from selfsight.errors import UserError
from selfsight.evals.detection import DetectionDataset
from selfsight.evals.eval_images import EvalImages, Images
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.multilabel_data import MultilabelData
from selfsight.terminal.progress import track

SAMPLE = 4096  # bytes from the middle of an image; only images that agree in them are compared
BATCH = 1024  # images whose samples are read at once


def describe_copies(data: LabeledData | MultilabelData) -> str | None:
    """Say how many test images are training images too; raise a UserError if all are."""
    pixels = _load_pixels(data.train, data.train if data.test is None else data.test)
    if pixels is None:
        return None
    train_index, test_index = data.train_index, data.test_index
    train_index = torch.arange(len(data.train)) if train_index is None else train_index
    test_index = torch.arange(len(pixels[1])) if test_index is None else test_index
    leave_one_out = isinstance(data, LabeledData) and not data.has_test_images
    copies = int(find_copies(*pixels, train_index, test_index, besides=leave_one_out).sum())
    if copies and leave_one_out:
        return (
            f"{copies:,} of {len(test_index):,} images have an identical copy among the others, "
            "which votes for them."
        )
    return _describe(copies, len(test_index))


def describe_copied_files(train: DetectionDataset, test: DetectionDataset) -> str | None:
    """Say how many test images are training images too, by the bytes of their files."""
    sizes = {tuple(size) for size in test.sizes.tolist()}
    of_train = [i for i, size in enumerate(train.sizes.tolist()) if tuple(size) in sizes]
    digests = (_digest(train.read(i)) for i in of_train)
    known = set(track(digests, "comparing training and test images", len(of_train)))
    return _describe(sum(_digest(test.read(i)) in known for i in range(len(test))), len(test))


def _describe(copies: int, total: int) -> str | None:
    if not copies:
        return None
    if copies == total:
        raise UserError(
            f"Every one of the {copies:,} test images is a training image too, so that the score "
            "would measure memory and not the encoder. Give other images with --test, or leave "
            "--test out: splits of the data are then used."
        )
    return (
        f"{copies:,} of {total:,} test images are training images too (the same pixels), which "
        "makes the score too high."
    )


def find_copies(
    train: CachedImages,
    test: CachedImages,
    train_index: Int64[Tensor, " n"],
    test_index: Int64[Tensor, " m"],
    *,
    besides: bool = False,
) -> Bool[Tensor, " m"]:
    """Whether each test image equals a training image; with `besides`, another training image."""
    length = min(SAMPLE, *(int(_lengths(images).min()) for images in (train, test)))
    samples = [list(_samples(train, train_index, length)), list(_samples(test, test_index, length))]
    number = Counter(samples[0])
    at_least = 2 if besides else 1
    candidates = {sample for sample in set(samples[1]) if number[sample] >= at_least}
    whole = Counter(
        _pixels(train, i)
        for i, sample in zip(train_index.tolist(), samples[0], strict=True)
        if sample in candidates
    )
    return torch.tensor(
        [
            sample in candidates and whole[_pixels(test, i)] >= at_least
            for i, sample in zip(test_index.tolist(), samples[1], strict=True)
        ],
        dtype=torch.bool,
    )


def _load_pixels(train: Images, test: Images) -> tuple[CachedImages, CachedImages] | None:
    """The images of both sets, decoded in the same way; None if they are not in memory."""
    if isinstance(train, EvalImages) and isinstance(test, EvalImages):
        return train.load_first(), test.load_like(train)
    if isinstance(train, CachedImages) and isinstance(test, CachedImages):
        return train, test
    return None


def _lengths(images: CachedImages) -> Int64[Tensor, " n"]:
    return images.channels * images.heights * images.widths


def _samples(
    images: CachedImages, index: Int64[Tensor, " n"], length: int
) -> Iterator[tuple[int, int, bytes]]:
    """Height, width and some bytes from the middle of each image."""
    for part in index.split(BATCH):
        starts, sizes = images.locate(part)
        middle = starts + (_lengths(images)[part] - length) // 2
        places = (middle[:, None] + torch.arange(length)).to(images.device)
        rows = images.flat[places].cpu().numpy()
        for (height, width), row in zip(sizes.tolist(), rows, strict=True):
            yield height, width, row.tobytes()


def _pixels(images: CachedImages, i: int) -> tuple[int, int, bytes]:
    start, height, width = int(images.starts[i]), int(images.heights[i]), int(images.widths[i])
    pixels = images.flat[start : start + images.channels * height * width]
    return height, width, _digest(pixels.cpu().numpy().tobytes())


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
