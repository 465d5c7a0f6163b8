"""JPEG files decoded many at once on the GPU; what nvJPEG does not read, Pillow does."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from selfsight.data.decode import UPRIGHT, UnreadableError, decode, stored_size
from selfsight.data.jpeg_header import jpeg
from selfsight.data.resize import shrunk

TOGETHER = 128  # files given to the GPU at once


def decode_batch(
    files: Sequence[bytes | np.ndarray],
    *,
    store_size: int,
    channels: int,
    device: torch.device | str,
) -> list[UInt8[Tensor, "c h w"] | str]:
    """Pixels on the device, within a few gray levels of `decode`; or why there are none."""
    out: list[Tensor | str] = [""] * len(files)
    told = [jpeg(file) if isinstance(file, bytes) and channels != 4 else None for file in files]
    plain = [i for i, one in enumerate(told) if one is not None and one.components in (1, 3)]
    for first in range(0, len(plain), TOGETHER):
        some = plain[first : first + TOGETHER]
        found = _decoded([files[i] for i in some], channels, device)
        large: dict[int, tuple[int, int]] = {}
        for i, pixels in zip(some, found, strict=True):
            if pixels is not None:
                out[i], (height, width) = pixels, pixels.shape[1:]
                size = stored_size((width, height), store_size)
                if size != (width, height):
                    large[i] = size[::-1]
        small = shrunk([out[i] for i in large], list(large.values()))  # type: ignore[misc]
        for i, pixels in zip(large, small, strict=True):
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
