"""Analyze features without labels, from several random views of a sample of images."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight import dist, rng
from selfsight.data import ImageStore, RawBatch, read_batches
from selfsight.errors import UserError, check_number
from selfsight.evals import view_statistics
from selfsight.evals.features import encode, eval_mode, module_device
from selfsight.evals.spectrum import (
    alignment,
    decay,
    effective_rank,
    eigenvalues,
    feature_std,
    lidar,
    uniformity,
)
from selfsight.nn import Encoder
from selfsight.progress import track
from selfsight.run_folder import Run, to_json
from selfsight.views import View, apply_views

# No epoch of training samples the same views. View i has the epoch EPOCH - i.
EPOCH = 2**31 - 2
MAX_EIGENVALUES = 512  # in the figures


class AnalysisResult(NamedTuple):
    """Numbers, and the data of their figures for JSON."""

    numbers: dict[str, float]
    figures: dict[str, Any]


class ViewEmbeddings(NamedTuple):
    """Features and embeddings of m views of each image, and a key of each image.

    A key is the embedding of the second view by the teacher, or by the student if there is none.
    """

    backbone: Float[Tensor, "n m d"]
    projector: Float[Tensor, "n m e"] | None = None
    keys: Float[Tensor, "n e"] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureAnalysis:
    """Std, rank, LiDAR, spectral decay, alignment, uniformity; similarity and variance over views.

    Called with a backbone, it analyzes its features; with a student or a method also the
    embeddings (names begin with `projector_`), and EqCo's bounds.
    """

    images: ImageStore
    views: Sequence[View]  # those of the size of the first are used, in turn
    seed: int = 0
    max_images: int = 1000  # LiDAR's paper uses 1,000, JCL's figure 32,768
    num_views: int = 10  # of each image; LiDAR's paper uses 50, JCL's figure 32
    temperature: float = 0.2
    alpha: float = 65536.0  # number of negatives that EqCo's margin emulates
    num_negatives: tuple[int, ...] = (16, 64, 256)
    batch_size: int = 256
    autocast: torch.dtype | None = None
    progress: bool = False
    distributed: bool = False  # every process calls this and encodes a part of the images

    def __post_init__(self) -> None:
        count = min(self.max_images, len(self.images))
        if count < 2:
            raise UserError(
                f"There are {count} images, but the analysis needs at least 2, and some hundred "
                "for reliable numbers. Add images."
            )
        check_number("num_views", self.num_views, at_least=2)
        check_number("temperature", self.temperature, above=0)
        check_number("alpha", self.alpha, above=0)

    def __call__(self, network: nn.Module) -> dict[str, float]:
        """Return the numbers for a backbone, a student, or a method."""
        return self.measure(network).numbers

    def write(self, run: Run, network: nn.Module) -> dict[str, float]:
        """Write the numbers to results/analysis.json and the figures to images/analysis.json."""
        result = self.measure(network)
        if dist.rank() == 0:
            run.write_result("analysis", to_json({**result.numbers, "settings": self.settings()}))
            run.write_image_json("analysis", to_json(result.figures))
        return result.numbers

    def settings(self) -> dict[str, Any]:
        """The settings that decided the numbers, for the result file."""
        return {
            "features": "backbone; projector_ of the projector",
            "images": min(self.max_images, len(self.images)),
            "views": self.num_views,
            "view_settings": [asdict(view) for view in self._same_size_views()],
            "seed": self.seed,
            "temperature": self.temperature,
            "alpha": self.alpha,
            "num_negatives": list(self._negative_counts(min(self.max_images, len(self.images)))),
        }

    def measure(self, network: nn.Module) -> AnalysisResult:
        """Compute numbers and figures."""
        rows = self.embed(network)
        numbers, figures = _layer_statistics(rows.backbone)
        figures = {"backbone": figures}
        if rows.projector is not None and rows.keys is not None:
            more, figures["projector"] = _layer_statistics(rows.projector)
            numbers |= {f"projector_{name}": value for name, value in more.items()}
            gradients = self._gradients(rows.projector[:, 0], rows.keys)
            figures["gradients"] = gradients
            numbers |= _summary(gradients)
        return AnalysisResult(numbers, figures)

    def embed(self, network: nn.Module) -> ViewEmbeddings:
        """Encode the views of a sample of images; equal on any number of processes."""
        student = getattr(network, "student", network)
        teacher = getattr(getattr(network, "teacher", None), "net", student)
        index = self._sample_index()
        title = "views" if self.progress else None
        indices = (dist.shard(index) if self.distributed else index).split(self.batch_size)
        batches = read_batches(
            self.images, ((EPOCH, part) for part in indices), module_device(network)
        )
        with eval_mode(network):
            parts = [
                self._encode_views(student, teacher, self._sample_views(raw))
                for raw in track(batches, title, len(indices))
            ]
        joined = [torch.cat(column) for column in zip(*parts, strict=True)]
        if self.distributed:
            joined = [dist.gather_shards(x, len(index)) for x in joined]
        return ViewEmbeddings(*joined)

    def _encode_views(
        self, student: nn.Module, teacher: nn.Module, views: Iterable[Float[Tensor, "b c s s"]]
    ) -> list[Tensor]:
        """The fields of ViewEmbeddings for a batch."""
        if not (isinstance(student, Encoder) and isinstance(teacher, Encoder)):
            return [torch.stack([encode(student, x, self.autocast) for x in views], dim=1)]
        h: list[Tensor] = []
        z: list[Tensor] = []
        for number, x in enumerate(views):
            h.append(encode(student.backbone, x, self.autocast))
            z.append(self._project(student, h[-1]))
            if number == 1:
                k = self._project(teacher, encode(teacher.backbone, x, self.autocast))
        return [torch.stack(h, dim=1), torch.stack(z, dim=1), k]

    def _sample_index(self) -> Int64[Tensor, " n"]:
        """Sample the images to analyze."""
        count = min(self.max_images, len(self.images))
        order = rng.key(self.seed, "analysis")
        return rng.shuffled(order, len(self.images), torch.arange(count))

    def _same_size_views(self) -> list[View]:
        """The views that have the size of the first."""
        return [view for view in self.views if view.size == self.views[0].size]

    def _sample_views(self, raw: RawBatch) -> Iterator[Float[Tensor, "b c s s"]]:
        """Yield `num_views` views of a batch, each with an epoch of its own."""
        views = self._same_size_views()
        for number in range(self.num_views):
            view, epoch = views[number % len(views)], raw.epoch - number
            yield apply_views((view,), raw.images, raw.index, seed=self.seed, epoch=epoch)[0]

    @torch.no_grad()
    def _project(self, encoder: Encoder, h: Float[Tensor, "b d"]) -> Float[Tensor, "b e"]:
        with torch.autocast(h.device.type, self.autocast, enabled=self.autocast is not None):
            z = encoder.projector(h.to(next(encoder.parameters()).dtype))
        return z.to(torch.promote_types(z.dtype, torch.float32))

    def _negative_counts(self, n: int) -> tuple[int, ...]:
        """The numbers of negatives, but at most all other images."""
        return tuple(dict.fromkeys(min(k, n - 1) for k in self.num_negatives))

    def _gradients(
        self, q: Float[Tensor, "n e"], keys: Float[Tensor, "n e"]
    ) -> list[dict[str, Any]]:
        """EqCo's figure 4: gradient norms for several K, without and with alpha."""
        records = []
        for k in self._negative_counts(len(q)):
            for alpha in (None, self.alpha):
                grads = view_statistics.query_gradients(
                    q, keys, num_negatives=k, temperature=self.temperature, alpha=alpha
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
                        "loss": loss,
                        "information_bound": bound,
                    }
                )
        return records


def _layer_statistics(views: Float[Tensor, "n m d"]) -> tuple[dict[str, float], dict[str, Any]]:
    first, second = views[:, 0], views[:, 1]
    values = eigenvalues(first)
    similarity, variance = view_statistics.similarity_and_variance(views)
    numbers = {
        "feature_std": feature_std(first),
        "effective_rank": effective_rank(first),
        "lidar": lidar(views),
        "alpha": decay(values),
        "alignment": alignment(first, second),
        "uniformity": uniformity(first),
        "similarity": similarity.mean(),
        "variance": variance.mean(),
    }
    figures = {
        "eigenvalues": values[:MAX_EIGENVALUES].tolist(),
        "similarity": view_statistics.histogram(similarity, low=0.0, high=1.0),
        # similarity + D * variance = 1, so that a variance is at most 1 / D.
        "variance": view_statistics.histogram(variance, low=0.0, high=1 / views.shape[2]),
    }
    return {name: value.item() for name, value in numbers.items()}, figures


def _summary(gradients: list[dict[str, Any]]) -> dict[str, float]:
    """The numbers of the last record: the most negatives, with EqCo's alpha."""
    last = gradients[-1]
    return {
        "information_bound": last["information_bound"],
        "gradient_norm": last["mean"],
        "gradient_norm_std": last["std"],
        "gradient_norm_bound": last["bound"],
    }
