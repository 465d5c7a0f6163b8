"""The map of features in two dimensions: t-SNE, or PCA for few points."""

import numpy as np
from jaxtyping import Float
from torch import Tensor

from selfsight.evals.feature_statistics import unit_or_zero
from selfsight.terminal.console import open_console

MIN_TSNE_POINTS = 50  # fewer have no neighborhoods that a map could preserve
MAX_PERPLEXITY = 30
# Half of scikit-learn's: from PCA's plane the map has settled by then, in 3 s for 1500 points
# instead of 7.
ITERATIONS = 500
ANNOUNCED = 1000  # points from which t-SNE takes seconds, and a line says so


def reduce_to_plane(h: Float[Tensor, "n d"]) -> tuple[str, Float[np.ndarray, "n 2"]]:
    """Reduce features to two dimensions, by t-SNE or, for few points, PCA; also its name."""
    x = unit_or_zero(h).double().cpu().numpy()
    x = x - x.mean(axis=0)
    is_one_point = np.ptp(x) == 0  # neither method has anything to divide by
    if is_one_point or len(x) < MIN_TSNE_POINTS or min(x.shape) < 3:
        if is_one_point or min(x.shape) < 2:
            return "PCA", np.zeros((len(x), 2))
        left, scale, _ = np.linalg.svd(x, full_matrices=False)
        return "PCA", left[:, :2] * scale[:2]
    from sklearn.decomposition import PCA  # seconds to import, and only the report needs it
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    if len(x) >= ANNOUNCED:
        line = f"Laying out a map of {len(x):,} images by t-SNE (5,000 take half a minute)."
        open_console(stderr=True).print(line)
    x = PCA(min(50, *x.shape), svd_solver="full").fit_transform(x)
    perplexity = min(MAX_PERPLEXITY, (len(x) - 1) / 3)
    tsne = TSNE(init="pca", random_state=0, max_iter=ITERATIONS, perplexity=perplexity)
    with threadpool_limits(1):  # the map would change with the number of threads
        return "t-SNE", tsne.fit_transform(x)
