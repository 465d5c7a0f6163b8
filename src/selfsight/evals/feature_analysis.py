"""Analyze features without labels, from several random views of a sample of images."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight import dist, rng
from selfsight.check_settings import COUNT, POSITIVE, Range, check_settings
from selfsight.data import ImageStore, RawBatch, read_batches
from selfsight.errors import UserError
from selfsight.evals import view_statistics
from selfsight.evals.extract_features import encode, eval_mode, module_device
from selfsight.evals.feature_statistics import (
    alignment,
    decay,
    effective_rank,
    eigenvalues,
    feature_std,
    lidar_of_moments,
    uniformity,
)
from selfsight.evals.view_statistics import ViewRows, view_rows, view_scatter
from selfsight.nn import Encoder
from selfsight.nn.queue import Queue
from selfsight.run_files.json_files import to_json
from selfsight.run_files.run_folder import Run
from selfsight.terminal.progress import track
from selfsight.views import View, apply_views

# No epoch of training samples the same views. View i has the epoch EPOCH - i.
EPOCH = 2**31 - 2
MAX_EIGENVALUES = 512  # in the figures
RANGES: dict[str, Range] = {
    "max_images": Range(2, 10**9),
    "num_views": Range(2, 10_000),
    "temperature": POSITIVE,
    "alpha": POSITIVE,
    "num_negatives": COUNT,
}


class AnalysisResult(NamedTuple):
    """Numbers, and the data of their figures for JSON."""

    numbers: dict[str, float]
    figures: dict[str, Any]


class LayerViews(NamedTuple):
    """The views of each image at one layer, reduced to rows and to one matrix."""

    rows: ViewRows
    within: Float[Tensor, "d d"]  # covariance of views around the mean of their image


EQCO_NUMBERS = {  # by their names in a record of the figure
    "information_bound": "information_bound",
    "gradient_norm": "mean",
    "gradient_norm_std": "std",
    "gradient_norm_bound": "bound",
    "gradient_norm_expected_bound": "expected_bound",
}


class Embedded(NamedTuple):
    """Features and embeddings of the views of each image, and a key of each image.

    A key is the embedding of the second view by the teacher, or by the student if there is none.
    """

    backbone: LayerViews
    projector: LayerViews | None = None
    keys: Float[Tensor, "n e"] | None = None


@dataclass(frozen=True, kw_only=True)
class AnalysisSettings:
    """Size of the sample, and the loss whose gradient is measured."""

    max_images: int = 1000
    """Images to sample. LiDAR's paper uses 1,000, JCL's figure 32,768."""
    num_views: int = 10
    """Views of each image. LiDAR's paper uses 50, JCL's figure 32."""
    temperature: float = 0.2
    """Temperature of InfoNCE."""
    alpha: float = 65536.0
    """Number of negatives that EqCo's margin emulates."""
    num_negatives: tuple[int, ...] = (16, 64, 256)
    """Numbers of negatives K, each at most the number of keys that there are."""
    negatives: Literal["images", "queue"] = "images"
    """Keys that are negatives: of the other images, or in the queue of the checkpoint."""

    def __post_init__(self) -> None:
        check_settings(self, "", RANGES)
        if not self.num_negatives:
            raise UserError("num_negatives is empty. Give one number of negatives or more.")


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureAnalysis:
    """Std, rank, LiDAR, spectral decay, alignment, uniformity; similarity and variance over views.

    Called with a backbone, it analyzes its features; with a student or a method also the
    embeddings (names begin with `projector_`), and EqCo's bounds. Views are reduced batch by
    batch, and pairs of images are computed in blocks: memory grows with the images, not with
    images x views or images x images.
    """

    images: ImageStore
    views: Sequence[View]  # those of the size of the first are used, in turn
    analysis: AnalysisSettings = AnalysisSettings()
    seed: int = 0
    batch_size: int = 256
    progress: bool = False
    distributed: bool = False  # every process calls this and encodes a part of the images

    def __post_init__(self) -> None:
        if self.num_images < 2:
            raise UserError(
                f"There are {self.num_images} images, but the analysis needs at least 2, and some "
                "hundred for reliable numbers. Add images."
            )

    @property
    def num_images(self) -> int:
        """Number of images that are analyzed."""
        return min(self.analysis.max_images, len(self.images))

    def __call__(self, network: nn.Module) -> dict[str, float]:
        """Return the numbers for a backbone, a student, or a method."""
        return self.measure(network).numbers

    def write(
        self,
        run: Run,
        network: nn.Module,
        kept: Iterable[tuple[int, nn.Module]] = (),
        *,
        name: str = "analysis",
    ) -> dict[str, float]:
        """Write the numbers to results/NAME.json and the figures to images/NAME.json.

        `kept` yields the same network after some epochs: EqCo's figure 4 is drawn for each.
        """
        result = self.measure(network)
        epochs = [{"epoch": epoch, "gradients": self.gradients(net)} for epoch, net in kept]
        figures = result.figures | ({"epochs": epochs} if epochs else {})
        if dist.rank() == 0:
            settings = self.settings(network)
            run.write_result(name, to_json({**result.numbers, "settings": settings}))
            run.write_image_json(name, to_json(figures))
        return result.numbers

    def settings(self, network: nn.Module | None = None) -> dict[str, Any]:
        """The settings that decided the numbers of a network, for the result file."""
        settings = self.analysis
        queue = None if network is None else self._find_queue(network)
        available, notes = self.num_images - 1 if queue is None else len(queue), []
        counts = list(_limit(settings.num_negatives, available))
        if counts[-1] < max(settings.num_negatives):
            notes = [f"The queue has {available} keys, not {max(settings.num_negatives)}."]
            if queue is None:
                notes = [
                    f"{self.num_images} images have {available} negatives each, not "
                    f"{max(settings.num_negatives)}. Raise --set.max-images if there are more, or "
                    "use a run's queue: --set.negatives queue."
                ]
        return {
            "features": "backbone; projector_ of the projector",
            "images": self.num_images,
            "views": settings.num_views,
            "view_settings": [asdict(view) for view in self._same_size_views()],
            "seed": self.seed,
            "temperature": settings.temperature,
            "alpha": settings.alpha,
            "num_negatives": counts,
            "negatives": settings.negatives,
            **({"notes": notes} if notes else {}),
        }

    def measure(self, network: nn.Module) -> AnalysisResult:
        """Compute numbers and figures."""
        queue = self._find_queue(network)
        rows = self.embed(network)
        numbers, figures = _layer_statistics(rows.backbone)
        figures = {"backbone": figures}
        if rows.projector is not None and rows.keys is not None:
            more, figures["projector"] = _layer_statistics(rows.projector)
            numbers |= {f"projector_{name}": value for name, value in more.items()}
            gradients = self._gradients(rows.projector.rows.first, rows.keys, queue)
            figures["gradients"] = gradients
            numbers |= _summary(gradients)
        return AnalysisResult(numbers, figures)

    def gradients(self, network: nn.Module) -> list[dict[str, Any]]:
        """EqCo's figure 4: gradient norms for several K, without and with alpha, from two views."""
        two_views = replace(self, analysis=replace(self.analysis, num_views=2))
        rows = two_views.embed(network)
        if rows.projector is None or rows.keys is None:
            raise UserError("Gradients of InfoNCE need a projector: give a student or a method.")
        return self._gradients(rows.projector.rows.first, rows.keys, self._find_queue(network))

    def embed(self, network: nn.Module) -> Embedded:
        """Encode the views of a sample of images; equal on any number of processes."""
        student = getattr(network, "student", network)
        teacher = getattr(getattr(network, "teacher", None), "net", student)
        index = self._sample_index()
        local = dist.shard(index) if self.distributed else index
        # The last process repeats an image to have as many as the others.
        own = len(index) - dist.rank() * len(local) if self.distributed else len(index)
        parts = local.split(self.batch_size)
        batches = read_batches(
            self.images, ((EPOCH, part) for part in parts), module_device(network)
        )
        rows: dict[str, list[ViewRows]] = defaultdict(list)
        scatter: dict[str, Tensor] = {}
        keys: list[Tensor] = []
        with eval_mode(network):
            for raw in track(batches, "views" if self.progress else None, len(parts)):
                layers, k = self._encode_views(student, teacher, self._sample_views(raw))
                keys += [] if k is None else [k]
                for layer, views in layers.items():
                    rows[layer].append(view_rows(views))
                    more = view_scatter(views[: max(0, own)])
                    scatter[layer] = more if layer not in scatter else scatter[layer] + more
                own -= len(raw.index)
        degrees = len(index) * (self.analysis.num_views - 1)
        joined = {
            layer: LayerViews(
                ViewRows(*(self._join(x, len(index)) for x in zip(*parts, strict=True))),
                (dist.all_sum(scatter[layer]) if self.distributed else scatter[layer]) / degrees,
            )
            for layer, parts in rows.items()
        }
        return Embedded(**joined, keys=self._join(keys, len(index)) if keys else None)

    def _join(self, parts: Sequence[Tensor], count: int) -> Tensor:
        """Concatenate the rows of all batches and processes."""
        rows = torch.cat(list(parts))
        return dist.gather_shards(rows, count) if self.distributed else rows

    def _encode_views(
        self, student: nn.Module, teacher: nn.Module, views: Iterable[Float[Tensor, "b c s s"]]
    ) -> tuple[dict[str, Float[Tensor, "b m _"]], Float[Tensor, "b e"] | None]:
        """The views of a batch at each layer, and its keys if there is a projector."""
        if not (isinstance(student, Encoder) and isinstance(teacher, Encoder)):
            h = [encode(student, x) for x in views]
            return {"backbone": torch.stack(h, dim=1)}, None
        h, z = [], []
        for number, x in enumerate(views):
            h.append(encode(student.backbone, x))
            z.append(self._project(student, h[-1]))
            if number == 1:
                k = self._project(teacher, encode(teacher.backbone, x))
        return {"backbone": torch.stack(h, dim=1), "projector": torch.stack(z, dim=1)}, k

    def _sample_index(self) -> Int64[Tensor, " n"]:
        """Sample the images to analyze."""
        order = rng.key(self.seed, "analysis")
        return rng.shuffled(order, len(self.images), torch.arange(self.num_images))

    def _same_size_views(self) -> list[View]:
        """The views that have the size of the first."""
        return [view for view in self.views if view.size == self.views[0].size]

    def _sample_views(self, raw: RawBatch) -> Iterator[Float[Tensor, "b c s s"]]:
        """Yield the views of a batch, each with an epoch of its own."""
        views = self._same_size_views()
        for number in range(self.analysis.num_views):
            view, epoch = views[number % len(views)], raw.epoch - number
            yield apply_views((view,), raw.images, raw.index, seed=self.seed, epoch=epoch)[0]

    @torch.no_grad()
    def _project(self, encoder: Encoder, h: Float[Tensor, "b d"]) -> Float[Tensor, "b e"]:
        z = encoder.projector(h.to(next(encoder.parameters()).dtype))
        return z.to(torch.promote_types(z.dtype, torch.float32))

    def _find_queue(self, network: nn.Module) -> Float[Tensor, "k e"] | None:
        """The keys in the network's queue, if they are the negatives."""
        if self.analysis.negatives == "images":
            return None
        queue = getattr(network, "queue", None)
        if not isinstance(queue, Queue):
            raise UserError(
                f"--set.negatives queue needs a method with a queue, such as moco, and "
                f"{type(network).__name__} has none. Use keys of other images: leave it out."
            )
        return queue.read()

    def _gradients(
        self,
        q: Float[Tensor, "n e"],
        keys: Float[Tensor, "n e"],
        queue: Float[Tensor, "k e"] | None,
    ) -> list[dict[str, Any]]:
        """A record for each K, without and with alpha."""
        settings = self.analysis
        records = []
        available = len(q) - 1 if queue is None else len(queue)
        for k in _limit(settings.num_negatives, available):
            for alpha in (None, settings.alpha):
                grads = view_statistics.query_gradients(
                    q,
                    keys,
                    num_negatives=k,
                    temperature=settings.temperature,
                    alpha=alpha,
                    queue=queue,
                )
                loss = grads.loss.mean().item()
                bound = view_statistics.information_bound(loss, num_negatives=k, alpha=alpha)
                records.append(
                    {
                        "num_negatives": k,
                        "alpha": alpha,
                        "mean": grads.norm.mean().item(),
                        "std": grads.norm.std(correction=0).item(),
                        "bound": grads.bound.mean().item(),
                        "expected_bound": grads.expected_bound.mean().item(),
                        "loss": loss,
                        "information_bound": bound,
                    }
                )
        return records


def _limit(counts: Sequence[int], available: int) -> tuple[int, ...]:
    """The numbers of negatives in order, each at most the number available."""
    return tuple(sorted({min(k, available) for k in counts}))


def _layer_statistics(layer: LayerViews) -> tuple[dict[str, float], dict[str, Any]]:
    rows = layer.rows
    values = eigenvalues(rows.first)
    numbers = {
        "feature_std": feature_std(rows.first),
        "effective_rank": effective_rank(rows.first),
        "lidar": lidar_of_moments(rows.mean, layer.within),
        "alpha": decay(values),
        "alignment": alignment(rows.first, rows.second),
        "uniformity": uniformity(rows.first),
        "similarity": rows.similarity.mean(),
        "variance": rows.variance.mean(),
    }
    figures = {
        "eigenvalues": values[:MAX_EIGENVALUES].tolist(),
        "similarity": view_statistics.histogram(rows.similarity, low=0.0, high=1.0),
        # similarity + D * variance = 1, so that a variance is at most 1 / D.
        "variance": view_statistics.histogram(rows.variance, low=0.0, high=1 / rows.first.shape[1]),
    }
    return {name: value.item() for name, value in numbers.items()}, figures


def _summary(gradients: list[dict[str, Any]]) -> dict[str, float]:
    """The numbers of the last record: the most negatives, with EqCo's alpha."""
    return {name: gradients[-1][key] for name, key in EQCO_NUMBERS.items()}
