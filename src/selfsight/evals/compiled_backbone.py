"""Compile a backbone for evaluations that encode many batches of one size on a GPU.

Only what runs in bf16 is compiled: classifiers that are trained on augmented images, and `embed
--precision bf16`. The float32 features of kNN, linear probes and `embed` are not: they equal those
of `selfsight.load(...).encode` to the last bit, and compiled code rounds differently.
"""

import contextlib
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selfsight import dist, rng
from selfsight.compile_cache import persist_compile_cache
from selfsight.compile_options import COMPILE_OPTIONS, allow_many_versions
from selfsight.terminal.console import open_console

# What an uncompiled ResNet-50 encodes in three minutes on a large GPU, at 12,000 images/s.
# Compiling takes 20 to 60 s if nothing is cached, and saves about a third of the time.
MIN_PIXELS = 180 * 12_000 * 224**2
# Networks for small images do not shrink them at first: a ResNet-18 computes as much for one of
# 32 x 32 as a ResNet-50 for one of about 80 x 80.
MIN_SIDE = 80
TRAINING_PASSES = 3  # a backward pass takes as long as two forward passes


class CompiledBackbone(nn.Module):
    """A backbone that is compiled for batches of one size; batches of other sizes run uncompiled.

    The given backbone does not change and shares its weights with this one. If torch cannot compile
    it, a line says so and it runs uncompiled.
    """

    def __init__(self, backbone: nn.Module, batch_size: int) -> None:
        super().__init__()
        allow_many_versions()
        persist_compile_cache()
        self.backbone, self.batch_size, self.failed = backbone, batch_size, False
        # In a tuple: a second submodule would list the weights twice.
        self.compiled = (torch.compile(backbone, **COMPILE_OPTIONS),)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Tensor:
        """Return what the backbone returns, up to rounding."""
        from torch._dynamo.exc import TorchDynamoException  # takes seconds, unless it is compiled

        if self.failed or len(x) != self.batch_size:
            return self.backbone(x)
        try:
            return self.compiled[0](x)
        except TorchDynamoException as error:
            self.failed = True
            h = self.backbone(x)  # raises first if the images do not fit the network
            open_console(stderr=True, quiet=dist.rank() != 0).print(
                f"torch cannot compile this network ({type(error).__name__}), so it runs "
                "uncompiled, which is slower.",
                soft_wrap=True,
            )
            return h


def compile_if_it_pays(
    backbone: nn.Module,
    batch_size: int,
    *,
    device: torch.device,
    num_images: int,
    image_size: int,
    trained: bool = False,
) -> nn.Module:
    """Return the backbone compiled for this batch size if `compiling_pays`, else as it is."""
    if rng.has_triton() and compiling_pays(device.type, num_images, image_size, trained=trained):
        return CompiledBackbone(backbone, batch_size)
    return backbone


def compiling_pays(
    device_type: str, num_images: int, image_size: int, *, trained: bool = False
) -> bool:
    """Return whether a process that encodes so many images, counted in all epochs, should compile.

    On a CPU it never does, and on a GPU not for less than about three minutes of work.
    """
    passes = num_images * (TRAINING_PASSES if trained else 1)
    return device_type == "cuda" and passes * max(image_size, MIN_SIDE) ** 2 >= MIN_PIXELS


@contextlib.contextmanager
def cudnn_tries_kernels(enabled: bool) -> Iterator[None]:
    """Let cuDNN time kernels for each convolution, which takes seconds, and use the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or enabled
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
