"""JPEG files decoded many at once on the GPU; what nvJPEG does not read, Pillow does."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

from sightline.data.decode import UPRIGHT, UnreadableError, decode, stored_size

TOGETHER = 128  # files given to the GPU at once
ENDS_WITHIN = 4096  # bytes from the end in which a whole file has its last marker
FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended, progressive
ALONE = {0x01, *range(0xD0, 0xD8)}  # markers without a length


class Jpeg(NamedTuple):
    """What the markers of a JPEG file tell."""

    width: int  # as it lies in the file
    height: int
    components: int
    orientation: int  # EXIF


def jpeg(data: bytes) -> Jpeg | None:
    """Size, components and orientation from a few bytes; None if this is no whole plain JPEG."""
    if data[:2] != b"\xff\xd8" or data.rfind(b"\xff\xd9", -ENDS_WITHIN) < 0:
        return None
    at, orientation = 2, 1
    while at + 4 <= len(data) and data[at] == 0xFF:
        kind = data[at + 1]
        if kind == 0xFF or kind in ALONE:  # padding
            at += 1 if kind == 0xFF else 2
            continue
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        body = data[at + 4 : at + 2 + length]
        if kind == 0xE1 and body[:6] == b"Exif\0\0":
            orientation = _orientation(body[6:])
        elif kind in FRAMES:
            if len(body) < 6 or body[0] != 8:  # bits per sample
                return None
            height, width = (int.from_bytes(body[i : i + 2], "big") for i in (1, 3))
            return Jpeg(width, height, body[5], orientation) if height and width else None
        elif (0xC3 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC)) or kind == 0xDA:
            return None
        at += 2 + length
    return None


def decode_batch(
    files: Sequence[bytes | np.ndarray],
    *,
    store_size: int,
    channels: int,
    device: torch.device | str,
) -> list[UInt8[Tensor, "c h w"] | str]:
    """Pixels on the device, within a few grey levels of `decode`; or why there are none."""
    out: list[Tensor | str] = [""] * len(files)
    told = [jpeg(file) if isinstance(file, bytes) and channels != 4 else None for file in files]
    plain = [i for i, one in enumerate(told) if one is not None and one.components in (1, 3)]
    by_size: dict[tuple[int, int], list[tuple[int, Tensor]]] = defaultdict(list)
    for first in range(0, len(plain), TOGETHER):
        some = plain[first : first + TOGETHER]
        for i, pixels in zip(
            some, _decoded([files[i] for i in some], channels, device), strict=True
        ):
            if pixels is not None:
                by_size[pixels.shape[1], pixels.shape[2]].append((i, pixels))
                out[i] = pixels
    for (height, width), same in by_size.items():
        size = stored_size((width, height), store_size)
        if size != (width, height):
            x = torch.stack([pixels for _, pixels in same]).float()
            x = F.interpolate(x, size=size[::-1], mode="bicubic", antialias=True)
            small = x.round_().clamp_(0, 255).byte()
            for (i, _), pixels in zip(same, small, strict=True):
                out[i] = pixels
    for i, (one, info) in enumerate(zip(out, told, strict=True)):
        if isinstance(one, str):
            out[i] = _on_cpu(files[i], store_size, channels, device)
        elif info is not None and info.orientation in UPRIGHT:
            swapped, mirrored = UPRIGHT[info.orientation]
            one = one.transpose(1, 2) if swapped else one
            out[i] = one.flip([axis + 1 for axis in mirrored])
    return out


def _decoded(
    files: Sequence[bytes | np.ndarray], channels: int, device: torch.device | str
) -> list[Tensor | None]:
    """All in one call; if that fails, one by one, so that a broken file spoils no other."""
    from torchvision.io import ImageReadMode, decode_jpeg

    mode = ImageReadMode.GRAY if channels == 1 else ImageReadMode.RGB
    encoded = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
    if torch.device(device).type == "cuda":
        # nvJPEG writes on a stream of its own to memory that this one may still be reading.
        torch.cuda.current_stream().synchronize()
    try:
        return list(decode_jpeg(encoded, mode=mode, device=device))
    except RuntimeError:
        return [_one(file, mode, device) for file in encoded]


def _one(file: Tensor, mode: object, device: torch.device | str) -> Tensor | None:
    from torchvision.io import decode_jpeg

    try:
        return decode_jpeg([file], mode=mode, device=device)[0]
    except RuntimeError:
        return None


def _on_cpu(
    file: bytes | np.ndarray, store_size: int, channels: int, device: torch.device | str
) -> Tensor | str:
    try:
        pixels = decode(file, store_size=store_size, channels=channels)
    except UnreadableError as error:
        return str(error)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))).to(device)


def _orientation(tiff: bytes) -> int:
    """The orientation in a block of EXIF; 1, upright, if there is none."""
    order = {b"II": "little", b"MM": "big"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return 1

    def number(at: int, size: int) -> int:
        return int.from_bytes(tiff[at : at + size], order)  # type: ignore[arg-type]

    table = number(4, 4)
    for entry in range(table + 2, table + 2 + 12 * number(table, 2), 12):
        if entry + 12 <= len(tiff) and number(entry, 2) == 0x0112:
            return number(entry + 8, 2)
    return 1
