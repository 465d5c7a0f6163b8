"""The teacher: a moving average of the student."""

import copy
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight.nn.batch_norm import encode_in_order
from selfsight.nn.chunked_encoder import check_chunk_size
from selfsight.nn.encoder import Images, Rows, encoders
from selfsight.rng import use_triton


class Teacher(nn.Module):
    """A copy of the student that follows it as a moving average and never gets a gradient.

    Only parameters move: the teacher runs in training mode and keeps its own running statistics.
    `momentum` is that of the last update, for the log. With `num_keys` views of an image in one
    batch, view after view, a batch-norm group holds `num_keys` times as many (JCL).
    """

    def __init__(self, student: nn.Module, *, copy_weights: bool = True, num_keys: int = 1) -> None:
        super().__init__()
        net = copy.deepcopy(student) if copy_weights else reinitialized(student)
        self.net = net.requires_grad_(False)
        self.num_keys = num_keys
        self.momentum: Any = None

    @torch.no_grad()
    def forward(
        self, x: Images, shuffle_order: Int64[Tensor, " g"] | None = None
    ) -> tuple[Rows, Rows]:
        """Features and embedding, without a graph; with an order, by shuffled batch norm."""
        if shuffle_order is None:
            return self.net(x)
        return encode_in_order(self.net, x, shuffle_order)

    @torch.no_grad()
    def follow(
        self, student: nn.Module, momentum: Any, *, skipped: Float[Tensor, ""] | None = None
    ) -> None:
        """Update teacher = momentum * teacher + (1 - momentum) * student.

        `momentum` is a number or a device scalar. Where `skipped` is 1 nothing moves; the host
        does not read it.
        """
        teachers: list[Any] = list(self.net.parameters())
        students: list[Any] = list(student.parameters())
        self.momentum = momentum
        on_device = skipped is not None or isinstance(momentum, Tensor)
        if on_device and use_triton(teachers[0]):  # torch has a kernel for a number
            from selfsight.triton_kernels.moving_average import launch_moving_average
            from selfsight.triton_kernels.tensor_lists import have_equal_layouts

            if have_equal_layouts(teachers, students):
                launch_moving_average(teachers, students, momentum, skipped)
                return
        if not isinstance(momentum, Tensor):
            if skipped is None:
                torch._foreach_lerp_(teachers, students, 1 - momentum)
                return
            # No multi-tensor kernel of torch takes a device scalar as the weight of a lerp.
            weight = ((1 - momentum) * (1 - skipped.to(torch.float64))).to(teachers[0].dtype)
            for t, s in zip(teachers, students, strict=True):
                t.lerp_(s, weight)
            return
        keep = momentum.to(teachers[0].device)
        add = 1 - keep
        if skipped is not None:
            keep, add = torch.where(skipped > 0, 1.0, keep), torch.where(skipped > 0, 0.0, add)
        # Scalars of another dtype would send the tensors through one by one.
        keep, add = keep.to(teachers[0].dtype), add.to(teachers[0].dtype)
        torch._foreach_mul_(teachers, keep)
        torch._foreach_add_(teachers, list(torch._foreach_mul(students, add)))


def reinitialized(network: nn.Module) -> nn.Module:
    """The same architecture with newly initialized weights, children before parents."""
    network = copy.deepcopy(network)
    for module in reversed(list(network.modules())):
        reset = getattr(module, "reset_parameters", None) or getattr(module, "init_weights", None)
        if callable(reset):
            reset()
    return network


def set_chunk_size(method: nn.Module, chunk_size: int) -> None:
    """Let every backbone of a method encode this many images at a time.

    A teacher that gets V views of an image in one batch encodes V times as many.
    """
    teachers = [m for m in method.modules() if isinstance(m, Teacher)]
    num_keys = {id(teacher.net): teacher.num_keys for teacher in teachers}
    for encoder in encoders(method):
        encoder.chunk_size = chunk_size * num_keys.get(id(encoder), 1)
        check_chunk_size(encoder.chunk_size, encoder.backbone)
