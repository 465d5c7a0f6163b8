"""What the processes do that decode for another one (see `decoders`).

Each is given two open files by number, LINE:ROOM: a line on which requests come in and answers go
out, and shared memory for the pixels.
"""

import gc
import mmap
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from PIL import Image

from selfsight.data.decode_threads import decoded, silence
from selfsight.data.remote import whole

NICE = 5  # the thread that drives a GPU goes first
Handed = str | bytes | np.ndarray  # the path of a file, its bytes, or pixels that need no decoding


def main(pairs: list[str]) -> None:
    """Part into one process for each pair, and stay until all have ended."""
    # What a first image would import, is imported here: once, to memory that all of them share.
    import torchvision.io  # noqa: F401

    Image.init()
    numbers = [tuple(map(int, pair.split(":"))) for pair in pairs]
    torch.set_num_threads(1)
    silence()
    os.nice(NICE)
    gc.freeze()  # a collection would write to what they share
    for line, room in numbers:
        if os.fork() == 0:
            for other, _ in numbers:  # or nobody would notice that another one has ended
                if other != line:
                    os.close(other)
            serve(Connection(line), room)
            os._exit(0)
    for line, _ in numbers:
        os.close(line)
    for _ in numbers:
        os.wait()
    os._exit(0)  # there is nothing to tidy up, and torch would take a second over it


def serve(line: Connection, room: int) -> None:
    """Answer until the other side hangs up."""
    shared = np.frombuffer(mmap.mmap(room, 0), np.uint8)
    try:
        line.send("ready")
        while True:
            handed, start, size, how = line.recv()
            line.send(answered(handed, shared[start : start + size], **how))
    except (EOFError, OSError):
        return


def answered(handed: list[Handed], room: np.ndarray, **how: int) -> list[Any]:
    """For each image why it has no pixels; or their shape, if they lie in the room; or them."""
    out: list[Any] = []
    at = 0
    for one in handed:
        pixels = here(one, **how)
        if not isinstance(pixels, str) and at + pixels.size <= len(room):
            room[at : at + pixels.size].reshape(pixels.shape)[:] = pixels
            at += pixels.size
            out.append(pixels.shape)
        else:
            out.append(pixels)
    return out


def here(one: Handed, **how: int) -> np.ndarray | str:
    """An image's pixels [C, H, W], or why it has none."""
    return planes(lambda: whole(one) if isinstance(one, str) else one, **how)


def planes(read: Callable[[], bytes | np.ndarray], **how: int) -> np.ndarray | str:
    """The pixels [C, H, W] of what is read, or why there are none."""
    pixels = decoded(read, **how)
    return pixels if isinstance(pixels, str) else np.ascontiguousarray(pixels.transpose(2, 0, 1))
