"""Instance discrimination: each image is a class, with its row of the memory bank as weights.

N: images on this process, M: noise samples of each, D: width. A loss is the mean over this
process's images.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from selfsight import dist
from selfsight.losses.float32_losses import at_least_float32, unit

Rows = Float[Tensor, "n d"]
Scalar = Float[Tensor, ""]

EPSILON = 1e-7  # of the released code, in both denominators


@at_least_float32
def softmax(
    v: Rows, memory: Float[Tensor, "p d"], *, own: Int64[Tensor, " n"], temperature: float
) -> Scalar:
    """Pick each image's own row among all rows of the memory (InstDisc, equation 2)."""
    return F.cross_entropy(unit(v) / temperature @ memory.T, own)


@at_least_float32
def logits(v: Rows, rows: Float[Tensor, "n c d"], *, temperature: float) -> Float[Tensor, "n c"]:
    """Similarity of each embedding to its own set of rows."""
    return torch.einsum("nd,ncd->nc", unit(v) / temperature, rows)


@torch.no_grad()
@at_least_float32
def partition(logits: Float[Tensor, "n c"], *, num_images: int) -> Scalar:
    """Z, a sum over all images, estimated from the samples of all processes (equation 8)."""
    return dist.mean(logits.exp().mean()) * num_images


@at_least_float32
def nce(logits: Float[Tensor, "n c"], partition: Scalar, *, num_images: int) -> Scalar:
    """Distinguish each image's own row (first column) from M uniform noise samples (equation 7)."""
    num_noise = logits.shape[1] - 1
    noise = math.log(num_noise / num_images)  # log of M P_n
    data = logits - partition.log()  # log of P(i | v)
    both = torch.log(data.exp() + (math.exp(noise) + EPSILON))
    return (both.sum(1) - data[:, 0] - num_noise * noise).mean()


@at_least_float32
def proximal(v: Rows, previous: Rows) -> Scalar:
    """Squared distance of each embedding to its row of the memory bank (equation 10)."""
    return (unit(v) - previous).square().sum(1).mean()
