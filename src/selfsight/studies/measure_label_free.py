"""Measures of an encoder that need no labels, for the ledger."""

import math
from typing import NamedTuple

from torch import nn

from selfsight.data import CachedImages
from selfsight.data.eval_transform import EvalTransform
from selfsight.evals.eval_images import EvalImages
from selfsight.evals.extract_features import Features
from selfsight.evals.feature_analysis import AnalysisSettings, FeatureAnalysis
from selfsight.evals.feature_statistics import decay, effective_rank, eigenvalues, uniformity
from selfsight.evals.labeled_data import LabeledData
from selfsight.recipe import Recipe

# Fewer views than `evaluate --protocol analysis` has, to take less than a second on a GPU.
SAMPLE = AnalysisSettings(max_images=1000, num_views=4)


class LabelFree(NamedTuple):
    """Numbers by their names, and counts of images in 50 bins of their view variance."""

    numbers: dict[str, float]
    view_variance: list[int]


def measure_label_free(
    backbone: nn.Module, recipe: Recipe, labeled: LabeledData, test: Features
) -> LabelFree:
    """Measure the encoder on the test images; numbers that are not finite are left out.

    Effective rank, alpha and uniformity are those of the test features. Alignment, LiDAR and the
    view variance need views: some of a sample of the test images are encoded, sampled as in
    training. The view variance is that of unit features over the views of an image, summed over
    their dimensions: from 0, where all views are alike, to 1.
    """
    images = select_test_images(labeled, labeled.transform)
    analysis = FeatureAnalysis(
        images=images, views=recipe.views, analysis=SAMPLE, distributed=labeled.distributed
    )
    of_views, figures = analysis.measure(backbone)
    numbers = {
        "effective_rank": effective_rank(test.h).item(),
        "alpha": decay(eigenvalues(test.h)).item(),
        "alignment": of_views["alignment"],
        "uniformity": uniformity(test.h).item(),
        "lidar": of_views["lidar"],
        "view_variance": of_views["variance"] * test.h.shape[1],
    }
    finite = {name: float(f"{x:.5g}") for name, x in numbers.items() if math.isfinite(x)}
    return LabelFree(finite, figures["backbone"]["variance"]["counts"])


def select_test_images(labeled: LabeledData, transform: EvalTransform) -> CachedImages:
    """Crops of the test images, or of those that are held out of the training images."""
    images = labeled.train if labeled.test is None else labeled.test
    assert isinstance(images, EvalImages)
    crops, rows = images.crops(transform, labeled.test_index)
    return crops if labeled.test_index is None else crops.select(rows)
