"""Lay out any number of images in the plane by their vectors; their clusters and outlier scores."""

import warnings
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from selfsight import rng
from selfsight.evals.feature_statistics import unit_or_zero
from selfsight.evals.knn import neighbors_in_blocks
from selfsight.evals.tsne_map import reduce_to_plane
from selfsight.vectors.search_images import OUTLIER_NEIGHBORS, Neighbors, score_outliers

SAMPLE = 5000  # images that t-SNE lays out, in 25 s of one core; the others are placed by them
CLUSTER_DIMS = 50  # of PCA, in which k-means clusters


class MapLayout(NamedTuple):
    """A place, an outlier score and a cluster for each image, and how they were computed."""

    points: Float[np.ndarray, "n 2"]
    outliers: Float[Tensor, " n"]
    clusters: Int64[np.ndarray, " n"]
    method: str
    about: str


def lay_out(
    h: Float[Tensor, "n d"], *, clusters: int, device: torch.device, sample: int = SAMPLE
) -> MapLayout:
    """Lay out unit vectors: t-SNE of all, or of a sample among which the others are placed."""
    n = len(h)
    rows = torch.arange(n)
    if n > sample:
        rows = rng.shuffled(rng.key(0, "map"), n, torch.arange(sample)).sort().values
    near = find_among(h, rows, device)
    method, points = reduce_to_plane(h[rows])
    about = f"The outlier score is the mean distance to the {near.rows.shape[1]} nearest images"
    if n > sample:
        points = place_by_neighbors(near, rows, points, n)
        method = f"{method} of {sample:,} images"
        about = (
            f"Each of the other {n - sample:,} is placed among its nearest of these. {about} of "
            f"the {sample:,}"
        )
    assigned = cluster(h, clusters)
    kinds = len(np.unique(assigned))
    about += f". The {kinds} clusters are those of k-means on the vectors."
    return MapLayout(points.astype(np.float32), score_outliers(near), assigned, method, about)


def find_among(
    h: Float[Tensor, "n d"], rows: Int64[Tensor, " m"], device: torch.device
) -> Neighbors:
    """The nearest images of each image among those of `rows`, without itself."""
    k = min(OUTLIER_NEIGHBORS, len(rows) - 1)
    if k < 1:
        return Neighbors(torch.ones(len(h), 1), torch.zeros(len(h), 1, dtype=torch.int64))
    values, near = neighbors_in_blocks(h[rows], h, k=k + 1, progress="comparing", device=device)
    values, near = values.cpu(), rows[near.cpu()]
    # The image itself moves to the end; a copy of it may have come first.
    own = near == torch.arange(len(h))[:, None]
    order = own.to(torch.uint8).sort(dim=1, stable=True).indices[:, :k]
    return Neighbors(values.gather(1, order), near.gather(1, order))


def place_by_neighbors(
    near: Neighbors, rows: Int64[Tensor, " m"], points: Float[np.ndarray, "m 2"], n: int
) -> Float[np.ndarray, "n 2"]:
    """Place each image at the weighted mean of its nearest `rows`, whose places are known.

    A neighbor has more weight if it is more similar, and if it is closer on the map to the most
    similar one: a plain mean over several groups would be in none of them.
    """
    place = np.zeros((n, 2))
    place[rows.numpy()] = points
    similarity, around = near.similarity.double().numpy(), place[near.rows.numpy()]
    weights = (similarity - similarity[:, -1:]) ** 2 + 1e-12
    map_points = torch.from_numpy(points).double()
    apart = torch.cdist(map_points, map_points).kthvalue(min(6, len(points))).values  # of the fifth
    reach = max(float(apart.median()), 1e-12)
    weights *= np.exp(-(((around - around[:, :1]) / reach) ** 2).sum(axis=2) / 2)
    placed = (around * weights[..., None]).sum(axis=1) / weights.sum(axis=1, keepdims=True)
    placed[rows.numpy()] = points
    return placed


def cluster(h: Float[Tensor, "n d"], count: int) -> Int64[np.ndarray, " n"]:
    """Cluster by k-means in the directions of the largest variance; the largest cluster is 0."""
    from sklearn.cluster import MiniBatchKMeans
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    x = unit_or_zero(h).float()
    x = x - x.mean(dim=0)
    _, directions = torch.linalg.eigh(x.T @ x)
    reduced = (x @ directions[:, -CLUSTER_DIMS:]).numpy()
    if np.ptp(reduced, axis=0).max() < 1e-6:  # a collapsed network
        return np.zeros(len(x), dtype=np.int64)
    model = MiniBatchKMeans(
        min(count, len(x)), random_state=0, n_init=3, batch_size=4096, max_iter=100
    )
    # One thread: the sums would change with their number.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fewer distinct images than clusters
        assigned = model.fit_predict(reduced)
    _, assigned, counts = np.unique(assigned, return_inverse=True, return_counts=True)
    rank = np.empty(len(counts), dtype=np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    return rank[assigned]
