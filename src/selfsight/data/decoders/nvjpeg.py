"""Decode batches of JPEG files on a GPU by nvJPEG."""

from collections.abc import Sequence

import torch
from torch import Tensor

from selfsight.data.decoders.decode_image import Encoded, try_decode
from selfsight.data.decoders.exif_orientation import UPRIGHT
from selfsight.data.decoders.jpeg import read_jpeg_header
from selfsight.data.decoders.resize_to_store import resize_each, stored_size
from selfsight.data.image_limits import max_pixels

NVJPEG_BATCH = 128  # files per call


def decode_with_nvjpeg(
    files: Sequence[Encoded | str], *, store_size: int, channels: int, device: torch.device | str
) -> list[Tensor | str]:
    """Decode to pixels [C, H, W] on the device, within a few gray levels of `decode`.

    The CPU decodes files that nvJPEG cannot. An image that cannot be read gives the reason
    instead; a reason among `files` is returned unchanged.
    """
    out: list[Tensor | str] = [""] * len(files)
    headers = [
        read_jpeg_header(file) if isinstance(file, bytes) and channels != 4 else None
        for file in files
    ]
    limit = max_pixels()
    readable = [
        i
        for i, x in enumerate(headers)
        if x is not None and x.components in (1, 3) and x.width * x.height <= limit
    ]
    for first in range(0, len(readable), NVJPEG_BATCH):
        batch = readable[first : first + NVJPEG_BATCH]
        decoded = _call_nvjpeg([files[i] for i in batch], channels, device)  # type: ignore[misc]
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
    for i, (file, header) in enumerate(zip(files, headers, strict=True)):
        pixels_or_reason = out[i]
        if isinstance(file, str):
            out[i] = file
        elif isinstance(pixels_or_reason, str):
            x = try_decode(lambda file=file: file, store_size=store_size, channels=channels)  # type: ignore[misc]
            out[i] = x if isinstance(x, str) else torch.from_numpy(x).to(device)
        elif header is not None and header.orientation in UPRIGHT:
            transpose, flipped = UPRIGHT[header.orientation]
            upright = pixels_or_reason.transpose(1, 2) if transpose else pixels_or_reason
            out[i] = upright.flip([axis + 1 for axis in flipped])
    return out


def _call_nvjpeg(
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
        decoded: list[Tensor | None] = []
        for file in encoded:
            try:
                decoded += decode_jpeg([file], mode=mode, device=device)
            except RuntimeError:
                decoded.append(None)
        return decoded
