"""Replace unreadable images of a batch by readable ones; stop a run if nearly none can be read."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from selfsight import rng
from selfsight.errors import UserError

MIN_FAILURES = 64  # unreadable replacements before the run may give up
MAX_FAILURE_RATE = 0.75  # of the replacements tried, above which the run gives up
TRIED_AT_ONCE = 16


def replace_unreadable(
    numbers: list[int],
    results: list[Any],
    *,
    data: str,
    names: Sequence[str],
    decode: Callable[[Sequence[int]], Iterable[Any]],
    record: Callable[[int, str], None],
) -> None:
    """Replace each reason in `results` by the pixels of another image, and its number.

    `data` names the data set, and `names` its images. `decode` returns pixels, or a reason, for
    each number. `record` is called for every image that cannot be read.
    """
    failed = [place for place, result in enumerate(results) if isinstance(result, str)]
    if not failed:
        return
    count, in_batch = len(names), set(numbers)
    candidates = {place: _replacements(numbers[place], count) for place in failed}
    for place in failed:
        record(numbers[place], results[place])
    tried = unreadable = 0
    while failed:
        places, failed = failed[:TRIED_AT_ONCE], failed[TRIED_AT_ONCE:]
        for place in places:
            # If the batch holds the whole data set, an image has to come twice.
            free = (i for i in candidates[place] if i not in in_batch or len(in_batch) >= count)
            numbers[place] = next(free)
            in_batch.add(numbers[place])
        tried += len(places)
        for place, pixels in zip(places, decode([numbers[p] for p in places]), strict=True):
            results[place] = pixels
            if isinstance(pixels, str):
                record(numbers[place], pixels)
                unreadable += 1
                failed.append(place)
        if unreadable >= MIN_FAILURES and unreadable >= MAX_FAILURE_RATE * tried:
            name, reason = names[numbers[failed[-1]]], results[failed[-1]]
            raise UserError(
                f"{unreadable} of {tried} images of {data} tried in a row cannot be read; the last "
                f"is {name}: {reason}. Check that the data are complete and reachable."
            )


def _replacements(index: int, count: int) -> Iterator[int]:
    """Images to try in place of an unreadable one: a shuffled data set, again and again."""
    key = rng.key(0, "instead")
    start = int(rng.bits(key, torch.tensor([index]), 1))
    for first in itertools.count(start, TRIED_AT_ONCE):
        position = torch.arange(first, first + TRIED_AT_ONCE) % count
        yield from rng.shuffled(key, count, position).tolist()
