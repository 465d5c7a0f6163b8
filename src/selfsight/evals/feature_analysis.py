"""What features look like, from several random views of some images; no labels are needed."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight import dist, rng
from selfsight.data import ImageStore, RawBatch, read_batches
from selfsight.errors import UserError
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

EPOCH = 2**31 - 2  # draws views that no epoch of training showed; each view has its own, downwards
MOST_EIGENVALUES = 512  # in the figures


class AnalysisResult(NamedTuple):
    """Numbers, and what their figures are drawn from, ready for JSON."""

    numbers: dict[str, float]
    figures: dict[str, Any]


class ViewEmbeddings(NamedTuple):
    """Rows of m views of each image: of the backbone, of the projector, and keys to the latter.

    A key is what the teacher, or without one the student, says of the second view.
    """

    backbone: Float[Tensor, "n m d"]
    projector: Float[Tensor, "n m e"] | None = None
    keys: Float[Tensor, "n e"] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureAnalysis:
    """Spread, rank, LiDAR, decay, alignment and uniformity; similarity and variance over views.

    Called with a backbone it looks at that; with a student or a whole method also at the
    projector (names then begin with `projector_`), and at EqCo's bounds.
    """

    images: ImageStore
    views: Sequence[View]  # those of the first one's size are drawn in turn
    seed: int = 0
    limit: int = 1000  # images; LiDAR's paper takes 1,000, JCL's figure 32,768
    num_views: int = 10  # of each image; LiDAR's paper takes 50, JCL's figure 32
    temperature: float = 0.2
    alpha: float = 65536.0  # what EqCo lets the negatives stand for
    num_negatives: tuple[int, ...] = (16, 64, 256)
    batch_size: int = 256
    autocast: torch.dtype | None = None
    progress: bool = False
    distributed: bool = False  # every process calls this, takes a share of the images, and gets all

    def __post_init__(self) -> None:
        if min(self.limit, len(self.images)) < 2:
            raise UserError(
                f"There are {min(self.limit, len(self.images))} images; to say how features "
                "differ between images takes two, and a good number some hundred."
            )
        if self.num_views < 2:
            raise UserError(f"num_views is {self.num_views}; to say how views differ takes 2.")
        if not (self.temperature > 0 and self.alpha > 0):
            raise UserError(
                f"temperature is {self.temperature} and alpha {self.alpha}. Both must be above 0."
            )

    def __call__(self, network: nn.Module) -> dict[str, float]:
        """The evaluator's numbers for a backbone, a student, or a method."""
        return self.measure(network).numbers

    def write(self, run: Run, network: nn.Module) -> dict[str, float]:
        """Keep the numbers in results/analysis.json and the figures in images/analysis.json."""
        found = self.measure(network)
        if dist.rank() == 0:
            run.write_result("analysis", to_json({**found.numbers, "settings": self.settings()}))
            run.write_image_json("analysis", to_json(found.figures))
        return found.numbers

    def settings(self) -> dict[str, Any]:
        """What decided the numbers, for the result file."""
        return {
            "features": "backbone; projector_ of the projector",
            "images": min(self.limit, len(self.images)),
            "views": self.num_views,
            "drawn": [asdict(view) for view in self._alike()],
            "seed": self.seed,
            "temperature": self.temperature,
            "alpha": self.alpha,
            "num_negatives": list(self._counts(min(self.limit, len(self.images)))),
        }

    def measure(self, network: nn.Module) -> AnalysisResult:
        """Numbers and figures."""
        rows = self.embed(network)
        numbers, figures = _of_layer(rows.backbone)
        figures = {"backbone": figures}
        if rows.projector is not None and rows.keys is not None:
            more, figures["projector"] = _of_layer(rows.projector)
            numbers |= {f"projector_{name}": value for name, value in more.items()}
            gradients = self._gradients(rows.projector[:, 0], rows.keys)
            figures["gradients"] = gradients
            numbers |= _summary(gradients)
        return AnalysisResult(numbers, figures)

    def embed(self, network: nn.Module) -> ViewEmbeddings:
        """All rows of some images, the same on any number of processes."""
        student = getattr(network, "student", network)
        teacher = getattr(getattr(network, "teacher", None), "net", student)
        index = self._index()
        mine = dist.shard(index) if self.distributed else index
        title = "views" if self.progress else None
        indices = mine.split(self.batch_size)
        batches = read_batches(
            self.images, ((EPOCH, part) for part in indices), module_device(network)
        )
        with eval_mode(network):
            parts = [
                self._encoded(student, teacher, self._sample_views(raw))
                for raw in track(batches, title, len(indices))
            ]
        joined = [torch.cat(column) for column in zip(*parts, strict=True)]
        if self.distributed:
            joined = [dist.gather_shards(x, len(index)) for x in joined]
        return ViewEmbeddings(*joined)

    def _encoded(
        self, student: nn.Module, teacher: nn.Module, views: Iterable[Float[Tensor, "b c s s"]]
    ) -> list[Tensor]:
        """The columns of Embedded for a batch."""
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

    def _index(self) -> Int64[Tensor, " n"]:
        """Which images are looked at."""
        count = min(self.limit, len(self.images))
        order = rng.key(self.seed, "analysis")
        return rng.shuffled(order, len(self.images), torch.arange(count))

    def _alike(self) -> list[View]:
        """The views of the first one's size."""
        return [view for view in self.views if view.size == self.views[0].size]

    def _sample_views(self, raw: RawBatch) -> Iterator[Float[Tensor, "b c s s"]]:
        """Yield `num_views` views of a batch, each with an epoch of its own."""
        alike = self._alike()
        for number in range(self.num_views):
            view, epoch = alike[number % len(alike)], raw.epoch - number
            yield apply_views((view,), raw.images, raw.index, seed=self.seed, epoch=epoch)[0]

    @torch.no_grad()
    def _project(self, encoder: Encoder, h: Float[Tensor, "b d"]) -> Float[Tensor, "b e"]:
        with torch.autocast(h.device.type, self.autocast, enabled=self.autocast is not None):
            z = encoder.projector(h.to(next(encoder.parameters()).dtype))
        return z.to(torch.promote_types(z.dtype, torch.float32))

    def _counts(self, n: int) -> tuple[int, ...]:
        """As many negatives as were asked for, or all there are."""
        return tuple(dict.fromkeys(min(k, n - 1) for k in self.num_negatives))

    def _gradients(
        self, q: Float[Tensor, "n e"], keys: Float[Tensor, "n e"]
    ) -> list[dict[str, Any]]:
        """EqCo's figure 4 for this network: norms for several K, without and with the rule."""
        found = []
        for k in self._counts(len(q)):
            for alpha in (None, self.alpha):
                made = view_statistics.query_gradients(
                    q, keys, num_negatives=k, temperature=self.temperature, alpha=alpha
                )
                loss = made.loss.mean().item()
                bound = view_statistics.information_bound(loss, num_negatives=k, alpha=alpha)
                found.append(
                    {
                        "num_negatives": k,
                        "alpha": alpha,
                        "mean": made.norm.mean().item(),
                        "std": made.norm.std(correction=0).item(),
                        "bound": made.bound.mean().item(),
                        "loss": loss,
                        "information_bound": bound,
                    }
                )
        return found


def _of_layer(views: Float[Tensor, "n m d"]) -> tuple[dict[str, float], dict[str, Any]]:
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
        "eigenvalues": values[:MOST_EIGENVALUES].tolist(),
        "similarity": view_statistics.histogram(similarity, low=0.0, high=1.0),
        # similarity + D * variance = 1, so this is as far as a variance can go.
        "variance": view_statistics.histogram(variance, low=0.0, high=1 / views.shape[2]),
    }
    return {name: value.item() for name, value in numbers.items()}, figures


def _summary(gradients: list[dict[str, Any]]) -> dict[str, float]:
    """Of the most negatives, under EqCo's rule."""
    last = gradients[-1]
    return {
        "information_bound": last["information_bound"],
        "gradient_norm": last["mean"],
        "gradient_norm_std": last["std"],
        "gradient_norm_bound": last["bound"],
    }
