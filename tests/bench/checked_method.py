"""A method that checks in every step that processes, batch and threads are as expected."""

from dataclasses import dataclass

import torch

from selfsight import dist
from selfsight.methods import Method, MethodConfig, Step
from selfsight.nn import Encoder, mlp


@dataclass(frozen=True, kw_only=True)
class CheckedConfig(MethodConfig):
    """Expected values."""

    processes: int = 2
    batch: int = 8  # of one process
    threads: int = 1

    def create(self, backbone, data):
        """The method around this backbone."""
        return CheckedMethod(backbone, self)


class CheckedMethod(Method):
    """An encoder with a trivial loss."""

    def __init__(self, backbone, config):
        super().__init__()
        self.config = config
        self.student = Encoder(backbone, mlp(backbone.dim, 4, norm=False))

    def forward(self, views, at):
        """Raise an error if processes, batch, threads or images are not as expected."""
        c = self.config
        actual = dist.world_size(), len(at.index), torch.get_num_threads()
        if actual != (c.processes, c.batch, c.threads):
            raise RuntimeError(f"got {actual}")
        if len(dist.gather(at.index).unique()) != c.processes * c.batch:
            raise RuntimeError("an image is in the batch twice")
        h, z = self.student(views[0])
        return Step(loss=z.square().mean(), features=h)
