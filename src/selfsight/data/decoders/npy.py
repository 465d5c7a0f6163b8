"""Images as arrays of numpy: .npy files of [H, W], [H, W, C] or [C, H, W]. Nothing is unpickled."""

import io
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from selfsight.data.image_limits import UnreadableError, check_pixels

MAGIC = b"\x93NUMPY"
MAX_CHANNELS = 16
SHAPES = "[H, W], [H, W, C] or [C, H, W] with at most 16 channels"


class ArrayHeader(NamedTuple):
    """Shape and type of the array in a .npy file, and where its values begin."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype
    start: int


def read_array_header(data: bytes) -> ArrayHeader:
    """Read the header of a .npy file."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            header = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            header = np.lib.format.read_array_header_2_0(file)
        else:
            raise ValueError(f"version {version[0]}.{version[1]} is for arrays of named fields")
    except Exception as error:  # numpy parses the header as Python, which raises any exception
        raise UnreadableError(f"not a .npy file of an image: {error}") from error
    shape, is_fortran, dtype = header
    if dtype.hasobject:
        raise UnreadableError(
            "it holds pickled Python objects, which are never read; save numbers: "
            "np.save(FILE, array.astype(np.float32))"
        )
    if dtype.kind not in "uif":
        raise UnreadableError(f"its values are {dtype}; integers or floats are expected")
    return ArrayHeader(shape, is_fortran, dtype, file.tell())


def find_channels(shape: Sequence[int], channels: int | None = None) -> int | None:
    """Find the axis of the channels: the axis of this size, else a short one, else None.

    The last axis is preferred to the first.
    """
    if len(shape) == 2 and min(shape) > 0:
        return None
    if len(shape) == 3 and min(shape) > 0:
        for axis in (2, 0):
            if shape[axis] == channels:
                return axis
        for axis in (2, 0):
            if shape[axis] <= MAX_CHANNELS:
                return axis
    raise UnreadableError(f"its shape is {list(shape)}; an image is {SHAPES}")


def read_array(data: bytes, channels: int | None = None) -> np.ndarray:
    """Read the pixels [H, W, C] of a .npy file."""
    header = read_array_header(data)
    axis = find_channels(header.shape, channels)
    sides = [side for k, side in enumerate(header.shape) if k != axis]
    check_pixels(*sides)
    count = math.prod(header.shape)
    if not count or len(data) - header.start < count * header.dtype.itemsize:
        raise UnreadableError(f"it is truncated: {count} values of {header.dtype} are expected")
    values = np.frombuffer(data, header.dtype, count, header.start)
    array = values.reshape(header.shape, order="F" if header.is_fortran else "C")
    return array[:, :, None] if axis is None else np.moveaxis(array, axis, 2)
