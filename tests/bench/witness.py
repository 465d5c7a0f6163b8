"""A method that checks in every step how it is run."""

from dataclasses import dataclass

import torch

from selfsight import dist
from selfsight.methods import Method, MethodConfig, Step
from selfsight.nn import Encoder, mlp


@dataclass(frozen=True, kw_only=True)
class WitnessConfig(MethodConfig):
    """What must be found; `unlucky` is the rank that fails in spite of it."""

    processes: int = 2
    batch: int = 8  # of one process
    threads: int = 1
    unlucky: int | None = None

    def make(self, backbone, data):
        """The method around this backbone."""
        return Witness(backbone, self)


class Witness(Method):
    """An encoder with a loss that means nothing."""

    def __init__(self, backbone, config):
        super().__init__()
        self.config = config
        self.student = Encoder(backbone, mlp(backbone.dim, 4, norm=False))

    def forward(self, views, at):
        """Raise where processes, batch, threads or images are not as told."""
        c = self.config
        found = dist.world_size(), len(at.index), torch.get_num_threads()
        if found != (c.processes, c.batch, c.threads):
            raise RuntimeError(f"found {found}")
        if len(dist.gather(at.index).unique()) != c.processes * c.batch:
            raise RuntimeError("an image came twice")
        if dist.rank() == c.unlucky:
            raise RuntimeError("out of luck")
        h, z = self.student(views[0])
        return Step(loss=z.square().mean(), features=h)
