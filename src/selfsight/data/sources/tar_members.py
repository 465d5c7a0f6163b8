"""The members of an uncompressed tar file, read header by header.

Python's tarfile trusts sizes: a negative one makes it loop forever, and gigabytes of an extended
header are read into memory. Here each header is checked before it is used.
"""

import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

BLOCK = 512
MAX_EXTENDED = 1 << 20  # bytes of a long name or of pax records
EXTENDED = b"LKxXg"  # types that describe the next member, or all of them
WITHOUT_DATA = b"123456"  # links, devices, folders and pipes
REGULAR = b"0\0" + b"7"
SPARSE = b"S"
PAX_RECORD = re.compile(rb"(\d{1,20}) ([^=]+)=")


class TarDamageError(ValueError):
    """A tar file is damaged; the message is the reason."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset


class Member(NamedTuple):
    """A regular file in a tar; `is_sparse` if its data have holes that the tar leaves out."""

    name: str
    offset: int  # of its data
    size: int
    is_sparse: bool


def read_members(opened: Any) -> Iterator[Member]:
    """Yield the regular files of an opened tar in order; raise TarDamageError where it is damaged.

    The two blocks of zeros at the end may be missing.
    """
    end, at = opened.seek(0, os.SEEK_END), 0
    long_name: bytes | None = None
    pax: dict[bytes, bytes] = {}
    common: dict[bytes, bytes] = {}  # pax records of all members that follow
    while at < end:
        header_at = at
        opened.seek(at)
        header = opened.read(BLOCK)
        if len(header) < BLOCK:
            raise TarDamageError(at, "the header is cut off")
        if not any(header):
            if any(opened.read(BLOCK)):
                raise TarDamageError(at, "there is no valid header")
            return
        kind, size = _parse_header(header, at)
        at += BLOCK
        if kind in EXTENDED:
            if size > MAX_EXTENDED or at + size > end:
                raise TarDamageError(header_at, f"an extended header has {size:,} bytes")
            opened.seek(at)
            data = opened.read(size)
            if kind == b"L":
                long_name = data.partition(b"\0")[0]
            elif kind in b"xX":
                pax = _parse_pax(data, header_at)
            elif kind == b"g":
                common |= _parse_pax(data, header_at)
            at += _round_up(size)
            continue
        records, name, pax, pending = common | pax, long_name, {}, header[482]
        long_name = None
        if kind == SPARSE:
            while pending:  # blocks that continue the map of the holes
                opened.seek(at)
                more = opened.read(BLOCK)
                if len(more) < BLOCK:
                    raise TarDamageError(header_at, "the map of a sparse file is cut off")
                pending, at = more[504], at + BLOCK
        if kind in WITHOUT_DATA:
            continue
        if b"size" in records:
            size = _parse_size(records[b"size"], header_at, base=10)
        if at + _round_up(size) > end:  # a cut in the padding may have lost files too
            raise TarDamageError(header_at, "the data of the last file are cut off")
        name = records.get(b"path", _short_name(header) if name is None else name)
        is_sparse = kind == SPARSE or any(key.startswith(b"GNU.sparse") for key in records)
        if (kind in REGULAR and not name.endswith(b"/")) or kind == SPARSE:
            yield Member(name.decode("utf-8", "backslashreplace"), at, size, is_sparse)
        at += _round_up(size)


def _parse_header(header: bytes, at: int) -> tuple[bytes, int]:
    """Type and size, if the checksum is right."""
    expected = _parse_size(header[148:156].strip(b" \0"), at, base=8)
    rest = header[:148] + b" " * 8 + header[156:]
    signed = sum(byte - 256 * (byte > 127) for byte in rest)  # of some old programs
    if expected not in (sum(rest), signed):
        raise TarDamageError(at, "there is no valid header")
    size = header[124:136]
    if size[0] in (0x80, 0xFF):  # base 256, for files of 8 GiB and more
        number = int.from_bytes(size[1:], "big", signed=False)
        if size[0] == 0xFF or number >= 1 << 62:
            raise TarDamageError(at, "a file has a size below zero or beyond all disks")
        return header[156:157], number
    return header[156:157], _parse_size(size.partition(b"\0")[0].strip(), at, base=8)


def _parse_size(text: bytes, at: int, *, base: int) -> int:
    digits = b"01234567" if base == 8 else b"0123456789"
    if len(text) > 20 or text.strip(digits):
        raise TarDamageError(at, "there is no valid header")
    return int(text or b"0", base)


def _parse_pax(data: bytes, at: int) -> dict[bytes, bytes]:
    """Records "LENGTH KEY=VALUE" with a line feed at the end; LENGTH counts all of it."""
    records, start = {}, 0
    while start < len(data) and data[start]:
        match = PAX_RECORD.match(data, start)
        stop = start + int(match[1]) if match else 0
        if match is None or not match.end() < stop <= len(data):
            raise TarDamageError(at, "an extended header is damaged")
        records[match[2]] = data[match.end() : stop - 1]
        start = stop
    return records


def _short_name(header: bytes) -> bytes:
    name, prefix = (header[a:b].partition(b"\0")[0] for a, b in ((0, 100), (345, 500)))
    return prefix + b"/" + name if prefix and header[156:157] != SPARSE else name


def _round_up(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
