"""Losses of other libraries as methods, for `selfsight conformance peer_methods:PeerConfig`.

One encoder for two views and a loss of two embeddings; `--method.loss` is one of LOSSES.
"""

import importlib
from dataclasses import dataclass

from selfsight.methods import Method, MethodConfig, Step
from selfsight.nn import Encoder, mlp

GATHER = {"gather_distributed": True}
LOSSES = {  # module, name, keywords of a class; None for a function
    "lightly.NTXentLoss": ("lightly.loss", "NTXentLoss", GATHER),
    "lightly.BarlowTwinsLoss": ("lightly.loss", "BarlowTwinsLoss", GATHER),
    "lightly.VICRegLoss": ("lightly.loss", "VICRegLoss", GATHER),
    "solo.simclr_loss_func": ("solo.losses", "simclr_loss_func", None),
    "solo.barlow_loss_func": ("solo.losses", "barlow_loss_func", None),
    "solo.vicreg_loss_func": ("solo.losses", "vicreg_loss_func", None),
    "stable_pretraining.NTXEntLoss": ("stable_pretraining.losses", "NTXEntLoss", {}),
    "stable_pretraining.BarlowTwinsLoss": ("stable_pretraining.losses", "BarlowTwinsLoss", {}),
    "stable_pretraining.VICRegLoss": ("stable_pretraining.losses", "VICRegLoss", {}),
}


@dataclass(frozen=True, kw_only=True)
class PeerConfig(MethodConfig):
    """Which loss."""

    loss: str = "lightly.NTXentLoss"
    dim: int = 8

    def create(self, backbone, data):
        """The method around this backbone."""
        return PeerMethod(backbone, self)


class PeerMethod(Method):
    """One encoder; the loss of two views."""

    def __init__(self, backbone, config):
        super().__init__()
        module, name, keywords = LOSSES[config.loss]
        loss = getattr(importlib.import_module(module), name)
        self.config, self.criterion = config, loss if keywords is None else loss(**keywords)
        self.student = Encoder(backbone, mlp(backbone.dim, config.dim, last_bias=True))

    def forward(self, views, at):
        """The loss of both embeddings."""
        (h, z1), (_, z2) = (self.student(x) for x in views)
        return Step(loss=self.criterion(z1, z2), features=h)
