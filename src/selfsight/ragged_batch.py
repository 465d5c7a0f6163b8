"""A batch of images of different sizes, without padding."""

from typing import NamedTuple

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor


class Ragged(NamedTuple):
    """Images [C, H, W] at any position of one tensor: no copy, no padding, one device.

    Pixels are bytes, or uint16 or float32 for images that are not photographs.
    `flat` may hold an entire data set on the device; a batch is then only starts and sizes.
    `largest` is an upper bound of height and width as Python ints, so that memory can be allocated
    without waiting for the device.
    """

    flat: Shaped[Tensor, " values"]
    starts: Int64[Tensor, " n"]
    sizes: Int64[Tensor, "n 2"]
    channels: int
    largest: tuple[int, int]

    def to(self, device: torch.device) -> "Ragged":
        """Copy to another device; asynchronous if the tensors are in pinned memory."""
        flat, starts, sizes = (x.to(device, non_blocking=True) for x in self[:3])
        return self._replace(flat=flat, starts=starts, sizes=sizes)

    def padded(self) -> Shaped[Tensor, "n c h w"]:
        """Return one dense batch, padded with zeros to the right and below."""
        return self._pad_by_copy() if self.flat.device.type == "cpu" else self._pad_by_gather()

    def _pad_by_copy(self) -> Tensor:
        """One copy per image: on the CPU far faster than an index per pixel."""
        height, width = self.sizes.amax(0).tolist()
        area = self.channels * height * width
        equal_sizes = bool((self.sizes == self.sizes[:1]).all()) and len(self.flat) % area == 0
        if equal_sizes and not bool((self.starts % area).any()):
            images = self.flat.view(-1, self.channels, height, width)
            return images[self.starts // area]
        shape = (len(self.starts), self.channels, height, width)
        pixels = torch.zeros(shape, dtype=self.flat.dtype)
        rows = zip(pixels, self.starts.tolist(), self.sizes.tolist(), strict=True)
        for out, start, (h, w) in rows:
            area = self.channels * h * w
            out[:, :h, :w] = self.flat[start : start + area].view(self.channels, h, w)
        return pixels

    def _pad_by_gather(self) -> Tensor:
        """One gather per channel: on a GPU far faster than a copy per image."""
        height, width = self.largest
        h, w = self.sizes[:, 0, None, None], self.sizes[:, 1, None, None]  # [N, 1, 1]
        y = torch.arange(height, device=self.flat.device)[:, None]
        x = torch.arange(width, device=self.flat.device)
        inside = (y < h) & (x < w)  # [N, H, W]
        at = torch.where(inside, self.starts[:, None, None] + y * w + x, 0)
        area = torch.where(inside, h * w, 0)
        planes = [self.flat[at + c * area] for c in range(self.channels)]
        if self.flat.dtype == torch.uint16:  # torch multiplies no uint16
            planes = [plane.float() for plane in planes]
        return torch.stack([plane * inside for plane in planes], dim=1)
