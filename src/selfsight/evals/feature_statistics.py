"""Statistics of features: spread, rank, LiDAR, decay, alignment, uniformity, retrieval.

Pure functions that return a scalar on the device of the features, fast enough for every log record
of a training run. If a row is not finite, the result is not finite.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

MAX_ELEMENTS = 2**23  # of a matrix of pairs that is computed at once: 32 MiB in float32
EPS = 1e-7  # added to each share before its logarithm (RankMe)
DELTA = 1e-4  # added to the spread between views (LiDAR), so that it is never 0
FIRST, LAST = 3, 100  # ranks that a line is fitted to (alpha-ReQ)
SHARPNESS = 2.0  # t of the Gaussian potential exp(-t |x - y|^2)


def feature_std(h: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Spread over the sphere: 1 for rows in all directions, 0 for equal rows.

    The standard deviation over rows of each coordinate of the unit features, averaged and
    multiplied by sqrt(D), as in figure 2 of SimSiam (arXiv:2011.10566). Never above 1. Features
    that are never negative, such as a ResNet's, reach some 0.5 to 0.8.
    """
    return unit(h).std(dim=0, correction=0).mean() * h.shape[1] ** 0.5


def effective_rank(h: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Number of directions that the rows use: RankMe (arXiv:2210.02885), between 1 and min(N, D).

    The exponential of the entropy of the normalized singular values. Rows are not centered, so
    features that have collapsed to one point have rank 1. Needs several times as many rows as the
    rank.
    """
    # The squared singular values are the eigenvalues of the smaller Gram matrix. In float32,
    # rounding errors would count as additional directions.
    h = h.double()
    if not bool(h.isfinite().all()):
        return h.new_tensor(float("nan"))
    gram = h.T @ h if h.shape[0] > h.shape[1] else h @ h.T
    return effective_rank_of_gram(gram)


def effective_rank_of_gram(gram: Float[Tensor, "k k"]) -> Float[Tensor, ""]:
    """The effective rank of features from their smaller Gram matrix, in float64."""
    if not bool(gram.isfinite().all()):
        return gram.new_tensor(float("nan"))
    return _exp_entropy(torch.linalg.eigvalsh(gram).clamp(min=0).sqrt())


def rank_influence(h: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Influence of each row on the effective rank: n times the derivative by the row's weight.

    The mean is 0. Resampling rows with replacement changes the rank by about the mean influence
    over the resample (the infinitesimal jackknife), so that no resample needs a decomposition.
    """
    h = h.double()
    n, d = h.shape
    if not bool(h.isfinite().all()):
        return h.new_full((n,), float("nan"))
    if n > d:
        values, axes = torch.linalg.eigh(h.T @ h)
        squares = (h @ axes).square()  # [N, D]: the derivative of each eigenvalue
    else:
        values, axes = torch.linalg.eigh(h @ h.T)
        squares = axes.square() * values.clamp(min=0)
    sigma = values.clamp(min=0).sqrt()
    total = sigma.sum().clamp(min=torch.finfo(h.dtype).tiny)
    share = sigma / total
    slope = -((share + EPS).log() + 1)  # of the entropy, by each share
    slope = (slope - (share * slope).sum()) / total  # by each singular value
    slope = torch.where(sigma > 0, slope / (2 * sigma), 0.0)  # by each eigenvalue
    influence = n * _exp_entropy(sigma) * (squares @ slope)
    return influence - influence.mean()  # 0 up to rounding


def lidar(views: Float[Tensor, "n m d"]) -> Float[Tensor, ""]:
    """Number of directions that distinguish images: LiDAR (arXiv:2312.04000), from m views of each.

    The effective rank of the spread between images, relative to the spread between views of one
    image: directions that only distinguish views do not count. Needs two or more views, and more
    images than directions.
    """
    views = views.double()
    n, m, _ = views.shape
    mean = views.mean(dim=1)  # [N, D]
    deviation = (views - mean[:, None]).flatten(0, 1)
    within = deviation.T @ deviation / (n * (m - 1))
    return lidar_of_moments(mean, within)


def lidar_of_moments(mean: Float[Tensor, "n d"], within: Float[Tensor, "d d"]) -> Float[Tensor, ""]:
    """LiDAR from the mean of each image's views, and the covariance of views around their mean."""
    if not bool(mean.isfinite().all() and within.isfinite().all()):
        return mean.new_tensor(float("nan"))
    n, d = mean.shape
    within = within + DELTA * torch.eye(d).to(within)
    between = (mean - mean.mean(dim=0)) / max(1, n - 1) ** 0.5
    # within^-1/2 between' between within^-1/2 has the eigenvalues of the product below.
    whitened = torch.linalg.solve_triangular(torch.linalg.cholesky(within), between.T, upper=False)
    gram = whitened.T @ whitened if n < d else whitened @ whitened.T
    return _exp_entropy(torch.linalg.eigvalsh(gram).clamp(min=0))


def eigenvalues(h: Float[Tensor, "n d"]) -> Float[Tensor, " k"]:
    """Variances along the principal axes of the rows, largest first; at most min(N, D) of them."""
    h = h.double()
    h = h - h.mean(dim=0)
    gram = h.T @ h if h.shape[0] > h.shape[1] else h @ h.T
    return torch.linalg.eigvalsh(gram / len(h)).clamp(min=0).flip(0)


def decay(values: Float[Tensor, " k"]) -> Float[Tensor, ""]:
    """alpha of eigenvalues that fall as rank^-alpha: alpha-ReQ (arXiv:2202.05808).

    Fits a line to the logarithms of ranks and values, from rank 3 to 100. A rank has the
    weight 1 / rank, so that every stretch of the line counts the same. The paper finds about 1 in
    good features. Far above 1, few directions carry the variance; far below, noise does too.
    Values that are 0 up to rounding are left out; the result is NaN with fewer than three others.
    """
    values = values[FIRST - 1 : LAST].double()
    values = values[values > values.max() * 1e-12] if len(values) else values
    if len(values) < 3 or not bool(values.isfinite().all()):
        return values.new_tensor(float("nan"))
    rank = torch.arange(FIRST, FIRST + len(values)).to(values)
    x, y, weight = rank.log(), values.log(), 1 / rank
    x = x - (weight * x).sum() / weight.sum()
    y = y - (weight * y).sum() / weight.sum()
    return -(weight * x * y).sum() / (weight * x * x).sum()


def alignment(x: Float[Tensor, "n d"], y: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Mean squared distance between the unit rows of two views: 0 if equal (arXiv:2005.10242)."""
    return (unit(x) - unit(y)).pow(2).sum(dim=1).mean()


def uniformity(x: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Log of the mean Gaussian potential of all pairs: 0 for one point, about -4 if spread out.

    Wang and Isola 2020 (arXiv:2005.10242). Needs two rows or more.
    """
    x = unit(x)
    total = x.new_zeros(())
    for first, rows in enumerate_blocks(x):
        total = total + _potential(rows, x, first).sum()
    return (total / (len(x) * (len(x) - 1))).log()


def uniformity_influence(x: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """Influence of each row on the uniformity: n times the derivative by its weight, mean 0.

    A row enters the mean over pairs twice (Hoeffding 1948).
    """
    x = unit(x)
    sums = [_potential(rows, x, first).sum(dim=1) for first, rows in enumerate_blocks(x)]
    mean = torch.cat(sums).double() / (len(x) - 1)
    return 2 * (mean / mean.mean() - 1)


def _potential(rows: Tensor, x: Tensor, first: int) -> Float[Tensor, "b n"]:
    """Gaussian potential of each pair; `rows` begin at row `first` of x, and have 0 with itself."""
    potential = (2 * SHARPNESS * (rows @ x.T - 1)).clamp(max=0).exp()  # |x - y|^2 = 2 - 2 x.y
    potential.diagonal(offset=first).zero_()
    return potential


def find_same_image(x: Float[Tensor, "n d"], y: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """1 for each row of `y` whose most similar row of `x` has the same index, 1 / k of k ties.

    If ties counted fully, features that have collapsed to one point would score 1.
    """
    similarity = unit(y) @ unit(x).T
    best = similarity.max(dim=1, keepdim=True).values
    nearest = similarity == best
    return nearest.diagonal() / nearest.sum(dim=1)


def _exp_entropy(values: Float[Tensor, " k"]) -> Float[Tensor, ""]:
    """Exponential of the entropy of the normalized values: k for k equal values."""
    share = values / values.sum().clamp(min=torch.finfo(values.dtype).tiny) + EPS
    return (-share * share.log()).sum().exp()


def enumerate_blocks(
    x: Float[Tensor, "n d"], *, width: int | None = None
) -> Iterator[tuple[int, Float[Tensor, "b d"]]]:
    """Yield the rows in blocks, each with its first row, so that [b, width] numbers are few.

    The width is that of the matrix that a caller computes for a block: N if not given.
    """
    size = max(1, MAX_ELEMENTS // max(1, width or len(x)))
    for first in range(0, len(x), size):
        yield first, x[first : first + size]


def unit(h: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Rows of length one, in at least float32."""
    return F.normalize(h.to(torch.promote_types(h.dtype, torch.float32)), dim=1)


def unit_or_zero(h: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Rows of length one; those of a diverged network become zero, alike to all others."""
    return unit(h).nan_to_num(0.0, 0.0, 0.0)
