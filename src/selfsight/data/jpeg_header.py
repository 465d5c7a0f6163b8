"""Size, number of components and orientation of a JPEG file, read without decoding it."""

import re
from typing import NamedTuple

ORIENTATION = 0x0112  # EXIF tag
END_MARKER_WITHIN = 4096  # bytes from the end in which a complete JPEG has its end marker
FRAMES = {0xC0, 0xC1, 0xC2}  # JPEG markers: baseline, extended, progressive
STANDALONE = {0x01, *range(0xD0, 0xD8)}  # JPEG markers without a length
EXIF = b"Exif\0\0"
XMP = b"http://ns.adobe.com/xap/1.0/\0"
XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')  # the same pattern as Pillow's
SCAN = b"\xff\xda"
MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # within or after the pixels of a scan
EXIF_TYPES = {3: 2, 4: 4}  # bytes of EXIF's short and long integers


class JpegHeader(NamedTuple):
    """Size, number of components and EXIF orientation from the markers of a JPEG file."""

    width: int  # as stored in the file
    height: int
    components: int
    orientation: int


def read_jpeg_header(data: bytes) -> JpegHeader | None:
    """Read the markers of a JPEG file; None if only Pillow can decode it."""
    if data[:2] != b"\xff\xd8" or data.rfind(b"\xff\xd9", -END_MARKER_WITHIN) < 0:
        return None
    at, exif, xmp, frame = 2, b"", b"", None
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF or marker in STANDALONE:  # 0xFF is padding
            at += 1 if marker == 0xFF else 2
            continue
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        body = data[at + 4 : at + 2 + length]
        if marker == 0xE1 and body.startswith(EXIF):
            exif += body[len(EXIF) :]  # a long block is split over several markers
        elif marker == 0xE1 and body.startswith(XMP):
            xmp = body[len(XMP) :]
        elif marker in FRAMES:
            if len(body) < 6 or body[0] != 8:  # bits per sample
                return None
            frame = body
        elif 0xC3 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return None
        elif marker == 0xDA:  # the pixels follow
            break
        at += 2 + length
    orientation = _jpeg_orientation(exif, xmp)
    if frame is None or orientation is None:
        return None
    height, width = (int.from_bytes(frame[i : i + 2], "big") for i in (1, 3))
    return JpegHeader(width, height, frame[5], orientation) if height and width else None


def count_scans(data: bytes, *, usual: int) -> int:
    """Number of scans of a JPEG file; an upper bound where it is at most `usual`."""
    scans = data.count(SCAN)  # also finds those in thumbnails and other metadata
    if scans <= usual:
        return scans
    at, scans = 2, 0
    while (match := MARKER.search(data, at)) and data[match.start() + 1] != 0xD9:
        at = match.start()
        scans += data[at + 1] == SCAN[1]
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return scans


def _jpeg_orientation(exif: bytes, xmp: bytes) -> int | None:
    """Orientation of EXIF, else of XMP, else 1 (upright); None if only Pillow can read it."""
    orientations = _exif_orientations(exif) if exif else []
    if orientations is None or len(orientations) > 1:
        return None
    if orientations:
        return orientations[0]
    match = XMP_ORIENTATION.search(xmp)
    return int(match[1]) if match else 1


def _exif_orientations(tiff: bytes) -> list[int] | None:
    """All orientation entries of an EXIF block; None if it is damaged."""
    order = {b"II*\0": "little", b"MM\0*": "big"}.get(tiff[:4])
    if order is None:
        return None

    def number(at: int, size: int) -> int:
        return int.from_bytes(tiff[at : at + size], order)  # type: ignore[arg-type]

    table, orientations = number(4, 4), []
    end = table + 2 + 12 * number(table, 2)
    if end > len(tiff):
        return None
    for entry in range(table + 2, end, 12):
        if number(entry, 2) == ORIENTATION:
            size = EXIF_TYPES.get(number(entry + 2, 2))
            if size is None or number(entry + 4, 4) != 1:
                return None
            orientations.append(number(entry + 8, size))
    return orientations
