"""Decode JPEG files in batches on the GPU; the CPU decodes those that nvJPEG cannot read."""

from collections.abc import Sequence

import torch
from torch import Tensor

from selfsight.data.decode import UPRIGHT, Encoded, read_jpeg_header, try_decode
from selfsight.data.resize import resize_each, stored_size

BATCH = 128  # files per call


def decode_batch(
    files: Sequence[Encoded], *, store_size: int, channels: int, device: torch.device | str
) -> list[Tensor | str]:
    """Decode to pixels [C, H, W] on the device, within a few gray levels of `decode`.

    An image that cannot be read gives the reason instead.
    """
    out: list[Tensor | str] = [""] * len(files)
    headers = [
        read_jpeg_header(file) if isinstance(file, bytes) and channels != 4 else None
        for file in files
    ]
    readable = [i for i, x in enumerate(headers) if x is not None and x.components in (1, 3)]
    for first in range(0, len(readable), BATCH):
        batch = readable[first : first + BATCH]
        decoded = _decode_together([files[i] for i in batch], channels, device)  # type: ignore[misc]
        too_large: dict[int, tuple[int, int]] = {}
        for i, pixels in zip(batch, decoded, strict=True):
            if pixels is not None:
                out[i], (height, width) = pixels, pixels.shape[1:]
                size = stored_size((width, height), store_size)
                if size != (width, height):
                    too_large[i] = size[::-1]
        resized = resize_each([out[i] for i in too_large], list(too_large.values()))  # type: ignore[misc]
        for i, pixels in zip(too_large, resized, strict=True):
            out[i] = pixels
    for i, (pixels_or_reason, header) in enumerate(zip(out, headers, strict=True)):
        if isinstance(pixels_or_reason, str):
            x = try_decode(lambda i=i: files[i], store_size=store_size, channels=channels)  # type: ignore[misc]
            out[i] = x if isinstance(x, str) else torch.from_numpy(x).to(device)
        elif header is not None and header.orientation in UPRIGHT:
            transpose, flipped = UPRIGHT[header.orientation]
            upright = pixels_or_reason.transpose(1, 2) if transpose else pixels_or_reason
            out[i] = upright.flip([axis + 1 for axis in flipped])
    return out


def _decode_together(
    files: Sequence[bytes], channels: int, device: torch.device | str
) -> list[Tensor | None]:
    """Decode all in one call; if that fails, one by one, to isolate broken files."""
    from torchvision.io import ImageReadMode, decode_jpeg

    mode = ImageReadMode.GRAY if channels == 1 else ImageReadMode.RGB
    encoded = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
    if torch.device(device).type == "cuda":
        # nvJPEG writes on its own stream to memory that the current stream may still be reading.
        torch.cuda.current_stream().synchronize()
    try:
        return list(decode_jpeg(encoded, mode=mode, device=device))
    except RuntimeError:
        return [_decode_alone(file, mode, device) for file in encoded]


def _decode_alone(file: Tensor, mode: object, device: torch.device | str) -> Tensor | None:
    from torchvision.io import decode_jpeg

    try:
        return decode_jpeg([file], mode=mode, device=device)[0]
    except RuntimeError:
        return None
