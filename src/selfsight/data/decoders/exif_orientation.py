"""The orientation of a photograph, from EXIF or XMP, and turning its pixels upright by it."""

import re

import numpy as np

ORIENTATION = 0x0112  # EXIF tag
XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')  # the same pattern as Pillow's
EXIF_TYPES = {3: 2, 4: 4}  # bytes of EXIF's short and long integers
UPRIGHT = {  # EXIF orientation: whether to transpose, then which axes to flip
    2: (False, (1,)),
    3: (False, (0, 1)),
    4: (False, (0,)),
    5: (True, ()),
    6: (True, (1,)),
    7: (True, (0, 1)),
    8: (True, (0,)),
}


def make_upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Turn and flip pixels [H, W, C] as the orientation says."""
    if orientation not in UPRIGHT:
        return pixels
    transpose, flipped = UPRIGHT[orientation]
    return np.flip(pixels.swapaxes(0, 1) if transpose else pixels, flipped).copy()


def jpeg_orientation(exif: bytes, xmp: bytes) -> int | None:
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
