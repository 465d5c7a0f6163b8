"""LeJEPA (Balestriero, LeCun 2025, arXiv:2511.08544), algorithm 2.

Every view of an image predicts the mean of its large views. The embeddings of all images are pulled
to an isotropic normal distribution, so that they cannot collapse; nothing else is needed.
"""

from dataclasses import dataclass
from typing import ClassVar

from selfsight.check_settings import FEW, POSITIVE, SHARE, WIDTH, Range
from selfsight.losses.decorrelation import lejepa
from selfsight.methods.base import DataInfo, Method, Moment, MultiCropConfig, Step, Views
from selfsight.nn import Backbone, Encoder, mlp


@dataclass(frozen=True, kw_only=True)
class LeJEPAConfig(MultiCropConfig):
    """Defaults: the paper's recommendation (section 6.1), the projector of the released code."""

    ranges: ClassVar[dict[str, Range]] = {
        "num_large": FEW,
        "sigreg_weight": SHARE,
        "num_slices": WIDTH,
        "num_knots": Range(2, 10**4),
        "last_knot": POSITIVE,
    }

    dim: int = 128
    hidden_dim: int = 2048
    num_layers: int = 3  # of the projector
    num_large: int = 2  # views whose mean is predicted
    num_small: int = 8  # small views beside them
    sigreg_weight: float = 0.05  # lambda; the prediction weighs 1 - lambda
    num_slices: int = 1024  # random directions, new ones in each step
    num_knots: int = 17  # of the integral over t, from 0 to last_knot
    last_knot: float = 3.0

    def create(self, backbone: Backbone, data: DataInfo) -> "LeJEPA":
        """The method around this backbone."""
        return LeJEPA(backbone, self)


class LeJEPA(Method):
    """One network; no teacher, no predictor, no negatives, no stopped gradient."""

    def __init__(self, backbone: Backbone, config: LeJEPAConfig) -> None:
        super().__init__()
        widths = [backbone.dim, *[config.hidden_dim] * (config.num_layers - 1), config.dim]
        self.config = config
        self.student = Encoder(backbone, mlp(*widths, bias=True, last_bias=True))

    def forward(self, views: Views, at: Moment) -> Step:
        """Prediction of the mean, and the distance to a normal distribution of the global batch."""
        c, x1 = self.config, views[0]
        h = self.student.crop_features(views)  # [VN, D]
        z = self.student.projector(h).unflatten(0, (len(views), -1))  # [V, N, D]
        directions = at.shared_normal("directions", c.num_slices, c.dim, z.device)  # [S, D]
        loss = lejepa(
            z,
            directions,
            num_large=c.num_large,
            sigreg_weight=c.sigreg_weight,
            num_knots=c.num_knots,
            last_knot=c.last_knot,
        )
        return Step(loss=loss, features=h[: len(x1)])
