"""TIFF files of any number of channels, as unsigned integers or floats of 8 to 64 bits.

Pillow reads 8-bit gray and color; it reduces 16-bit color to 8 bits and reads no other channels.
This module finds the strips or tiles of a page and interprets their samples. zlib decompresses
Deflate, and Pillow's libtiff the other lossless compressions, block by block.
"""

import io
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from PIL import Image

from selfsight.data.image_limits import UnreadableError, check_pixels

MAGICS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # little and big endian; + is BigTIFF
MAX_PAGES = 16
MAX_BYTES_PER_PIXEL = 4  # limit for all samples of an image, in multiples of the limit of pixels
MAX_VALUES = 2**20  # of a tag: as many strips or tiles
TYPES = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q", 18: "Q"}  # code of struct for a tag's type
KINDS = {1: "u", 2: "i", 3: "f", 4: "u"}  # by the tag SampleFormat; 4 is undefined, 5 is complex
REVERSED_BITS = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
DEFLATE = (8, 32946)
BY_PILLOW = {5: "LZW", 32773: "PackBits", 34925: "LZMA", 50000: "Zstandard"}
WHITE_IS_ZERO, GRAY, RGB = 0, 1, 2  # photometric interpretation
TAGS = {
    254: "subfile",
    256: "width",
    257: "height",
    258: "bits",
    259: "compression",
    262: "photometric",
    266: "fill_order",
    273: "strip_offsets",
    274: "orientation",
    277: "samples",
    278: "strip_rows",
    279: "strip_bytes",
    284: "planar",
    317: "predictor",
    322: "tile_width",
    323: "tile_height",
    324: "tile_offsets",
    325: "tile_bytes",
    339: "format",
}


class Page(NamedTuple):
    """One image of a file, as its tags describe it."""

    order: str  # of bytes: < or >
    width: int
    height: int
    channels: int
    dtype: np.dtype  # of samples, in the order of the file
    photometric: int  # how samples are interpreted: 0 and 1 are gray, 2 is RGB
    orientation: int
    compression: int
    predictor: int
    planar: bool  # each channel has its own blocks
    block: tuple[int, int]  # height and width of a strip or tile
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]  # in bytes
    is_tiled: bool
    bits_reversed: bool  # of each byte, as fax machines send them

    @property
    def is_color(self) -> bool:
        """Whether its channels are red, green and blue."""
        return self.photometric == RGB and self.channels == 3

    @property
    def is_read_by_pillow(self) -> bool:
        """Whether it is 8-bit gray or color to Pillow, or no image that this module reads."""
        if self.dtype != np.uint8:
            return self.dtype.kind == "V"
        gray = self.photometric in (WHITE_IS_ZERO, GRAY)  # of several channels, Pillow reads one
        return self.channels == 1 if gray else self.channels in (1, 3, 4)


def read_pages(data: bytes) -> list[Page]:
    """Read the tags of the pages of full size, up to one more than can be channels."""
    try:
        pages = (_describe_page(data[:2], tags) for tags in _read_tags(data))
        return [page for _, page in zip(range(MAX_PAGES + 1), pages, strict=False)]
    except (struct.error, KeyError, IndexError, OverflowError, MemoryError) as error:
        raise UnreadableError("it is a damaged TIFF file: its tags cannot be read") from error


def read_page(data: bytes, page: Page) -> np.ndarray:
    """Decode the samples [H, W, C] of a page, in the order of bytes of this machine."""
    rows, columns = page.block
    down, across = -(-page.height // rows), -(-page.width // columns)
    check_samples(page, page.channels)
    planes = page.channels if page.planar else 1
    depth = 1 if page.planar else page.channels
    if len(page.offsets) < planes * down * across or len(page.sizes) < len(page.offsets):
        raise UnreadableError("it is a damaged TIFF file: strips or tiles are missing")
    dtype = page.dtype.newbyteorder("=")
    out = np.empty((page.height, page.width, page.channels), dtype)
    for number in range(planes * down * across):
        plane, place = divmod(number, down * across)
        top, left = (k * side for k, side in zip(divmod(place, across), page.block, strict=True))
        count = rows if page.is_tiled else min(rows, page.height - top)
        start, end = page.offsets[number], page.offsets[number] + page.sizes[number]
        packed = data[start:end].translate(REVERSED_BITS if page.bits_reversed else None)
        raw = _decompress(packed, page.compression, count, columns * depth * page.dtype.itemsize)
        block = _undo_predictor(raw, page, (count, columns, depth))
        target = out[top : top + rows, left : left + columns, plane if page.planar else slice(None)]
        block = block[: page.height - top, : page.width - left]
        target[...] = block[..., 0] if page.planar else block
    return out


def check_samples(page: Page, channels: int) -> None:
    """Raise if an image of so many channels takes too much memory, or the tiles that it is in."""
    check_pixels(page.width, page.height)
    width, height = page.width, page.height
    if page.is_tiled:
        height, width = (-(-a // b) * b for a, b in zip((height, width), page.block, strict=True))
    check_pixels(width, -(-height * channels * page.dtype.itemsize // MAX_BYTES_PER_PIXEL))


def _read_tags(data: bytes) -> Iterator[dict[str, tuple[int, ...]]]:
    """Yield the tags of each page."""
    order = "<" if data[:2] == b"II" else ">"
    big = data[2:4] in (b"+\0", b"\0+")
    head, entry, offset = ("Q", 20, "Q") if big else ("H", 12, "I")
    (at,) = struct.unpack_from(f"{order}{offset}", data, 8 if big else 4)
    visited = set()
    left = len(data)  # bytes that tags may take: those of a whole file do not overlap
    while at and at not in visited:
        visited.add(at)
        (count,) = struct.unpack_from(f"{order}{head}", data, at)
        first, tags = at + struct.calcsize(head), {}
        for place in range(first, first + min(count, 4096) * entry, entry):
            tag, kind = struct.unpack_from(f"{order}HH", data, place)
            (length,) = struct.unpack_from(f"{order}{offset}", data, place + 4)
            is_known = tag in TAGS and kind in TYPES
            size = length * struct.calcsize(TYPES[kind]) if is_known else 0
            left -= entry + size
            if left < 0 or (is_known and length > MAX_VALUES):
                raise UnreadableError("it is a damaged TIFF file: its tags are too long")
            if not size:
                continue
            value = place + 4 + struct.calcsize(offset)
            if size > struct.calcsize(offset):
                (value,) = struct.unpack_from(f"{order}{offset}", data, value)
            tags[TAGS[tag]] = struct.unpack_from(f"{order}{length}{TYPES[kind]}", data, value)
        if not tags.get("subfile", (0,))[0] & 1:  # else a copy of reduced size
            yield tags
        (at,) = struct.unpack_from(f"{order}{offset}", data, first + count * entry)


def _describe_page(order: bytes, tags: dict[str, tuple[int, ...]]) -> Page:
    def one(name: str, default: int) -> int:
        return tags.get(name, (default,))[0]

    width, height, channels = tags["width"][0], tags["height"][0], one("samples", 1)
    bits, formats = set(tags.get("bits", (1,))), set(tags.get("format", (1,)))
    kind, depth = KINDS.get(min(formats)), min(bits)
    is_plain = len(bits) == len(formats) == 1 and depth in (8, 16, 32, 64) and kind is not None
    if not is_plain or (kind == "f" and depth == 8) or not width or not height or not channels:
        dtype = np.dtype(np.void)  # Pillow may know it
    else:
        dtype = np.dtype(f"{'<' if order == b'II' else '>'}{kind}{depth // 8}")
    is_tiled = "tile_offsets" in tags
    name = "tile" if is_tiled else "strip"
    block = (one("tile_height", height), one("tile_width", width))
    if not is_tiled:
        block = (max(1, min(one("strip_rows", height), height)), width)
    return Page(
        order="<" if order == b"II" else ">",
        width=width,
        height=height,
        channels=channels,
        dtype=dtype,
        photometric=one("photometric", GRAY),
        orientation=one("orientation", 1),
        compression=one("compression", 1),
        predictor=one("predictor", 1),
        planar=one("planar", 1) == 2 and channels > 1,
        block=(max(1, block[0]), max(1, block[1])),
        offsets=tags.get(f"{name}_offsets", ()),
        sizes=tags.get(f"{name}_bytes", ()),
        is_tiled=is_tiled,
        bits_reversed=one("fill_order", 1) == 2,
    )


def _decompress(block: bytes, compression: int, rows: int, row_bytes: int) -> bytes:
    count = rows * row_bytes
    if compression == 1:
        raw = block[:count]
    elif compression in DEFLATE:
        try:
            raw = zlib.decompressobj().decompress(block, count)
        except zlib.error as error:
            raise UnreadableError(f"it is a damaged TIFF file: {error}") from error
    elif compression in BY_PILLOW:
        raw = _decompress_with_pillow(block, compression, rows, row_bytes)
    else:
        raise UnreadableError(
            f"its TIFF compression {compression} is read for 8-bit gray and color only; write it "
            "uncompressed, or with Deflate or LZW"
        )
    if len(raw) < count:
        raise UnreadableError("it is a truncated TIFF file")
    return raw


def _decompress_with_pillow(block: bytes, compression: int, rows: int, row_bytes: int) -> bytes:
    """Decompress a block as a gray image of bytes, in a file that is written around it."""
    tags = {256: row_bytes, 257: rows, 258: 8, 259: compression, 262: 1, 273: 0, 277: 1}
    tags |= {278: rows, 279: len(block)}
    tags[273] = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    file = struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + struct.pack("<I", 0) + block
    try:
        with Image.open(io.BytesIO(file), formats=("TIFF",)) as image:
            return image.tobytes()
    except Exception as error:  # Pillow's plugins raise any exception on broken files
        name = BY_PILLOW[compression]
        raise UnreadableError(f"its {name} compression cannot be undone: {error}") from error


def _undo_predictor(raw: bytes, page: Page, shape: tuple[int, int, int]) -> np.ndarray:
    rows, columns, depth = shape
    size, native = page.dtype.itemsize, page.dtype.newbyteorder("=")
    if page.predictor == 1:
        return np.frombuffer(raw, page.dtype).reshape(shape).astype(native, copy=False)
    if page.predictor == 2:  # differences of neighbors, which wrap around
        unsigned = np.dtype(f"{page.order}u{size}")
        steps = np.frombuffer(raw, unsigned).reshape(shape)
        values = steps.cumsum(axis=1, dtype=unsigned.newbyteorder("="))
        return values.view(native)
    if page.predictor == 3 and page.dtype.kind == "f":  # of bytes, the first of all floats first
        steps = np.frombuffer(raw, np.uint8).reshape(rows, columns * size, depth)
        planes = steps.cumsum(axis=1, dtype=np.uint8).reshape(rows, size, columns * depth)
        swapped = np.ascontiguousarray(planes.transpose(0, 2, 1))
        return swapped.view(f">f{size}").reshape(shape).astype(native)
    raise UnreadableError(f"its TIFF predictor {page.predictor} is not known")
