"""Limits that keep one file from taking all memory; environment variables raise them."""

import math
import os
import stat

from selfsight.errors import UserError

BYTES_VARIABLE, DEFAULT_MIB = "SELFSIGHT_MAX_IMAGE_MIB", 256.0
PIXELS_VARIABLE, DEFAULT_MEGAPIXELS = "SELFSIGHT_MAX_MEGAPIXELS", 128.0
KINDS = {  # of what is not a regular file
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


class UnreadableError(ValueError):
    """An image cannot be read or decoded; the message is the reason."""


def read_number(variable: str, default: float, unit: str) -> float:
    """A number from an environment variable, or the default."""
    text = os.environ.get(variable, "")
    try:
        number = float(text) if text.strip() else default
    except ValueError:
        number = math.nan
    if not 0 <= number < 2**50:
        raise UserError(f"{variable} is {text!r}; it should be a number of {unit}, such as 500.")
    return number


def check_regular(path: str, max_bytes: int | None = None) -> int:
    """Size of a regular file; raise for anything else, since reading a pipe may never end."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        kind = KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise UnreadableError(f"it is {kind}, not a regular file")
    if max_bytes is not None and status.st_size > max_bytes:
        raise UnreadableError(describe_too_many_bytes(status.st_size))
    return status.st_size


def max_image_bytes() -> int:
    """Bytes that the file of one image may have."""
    return int(read_number(BYTES_VARIABLE, DEFAULT_MIB, "MiB") * 2**20)


def max_pixels() -> int:
    """Pixels that one image may have."""
    return int(read_number(PIXELS_VARIABLE, DEFAULT_MEGAPIXELS, "million pixels") * 1e6)


def check_bytes(count: int) -> None:
    """Raise if an image has more bytes than the limit."""
    if count > max_image_bytes():
        raise UnreadableError(describe_too_many_bytes(count))


def check_pixels(width: int, height: int) -> None:
    """Raise if an image has more pixels than the limit."""
    limit = max_pixels()
    if width * height > limit:
        raise UnreadableError(
            f"it has {width} x {height} pixels, more than the limit of {limit / 1e6:,.0f} million; "
            f"{PIXELS_VARIABLE} raises it"
        )


def describe_too_many_bytes(count: int) -> str:
    """Say that a file is too large for an image, and what raises the limit."""
    return (
        f"it has {count / 2**20:,.0f} MiB, more than the limit of "
        f"{max_image_bytes() / 2**20:,.0f} MiB; {BYTES_VARIABLE} raises it"
    )
