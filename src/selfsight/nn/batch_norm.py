"""Batch normalization over groups of the global batch.

`group=None` is one group over the images of all processes (SyncBN). `group=n` makes a group of
every n consecutive images of the global batch, whatever the number of processes: on one GPU it
gives the statistics that n images per GPU would give. Shuffled BN (MoCo) is groups of n over a
permuted batch (`shuffle_order`, `encode_in_order`). The same numbers on CPU and GPU.
"""

import itertools
import math
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from selfsight import dist
from selfsight.errors import UserError
from selfsight.rng import RandomDraws

Affine = Literal["both", "scale", "none"]
BatchNormMode = Literal["sync", "split", "shuffle"]


class Statistics(NamedTuple):
    """Mean and unbiased variance of each group of one forward pass."""

    means: Float[Tensor, "groups c"]
    variances: Float[Tensor, "groups c"]


class BatchNorm(nn.Module):
    """Normalize over groups; running statistics are the mean over all groups on all processes."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        num_features: int,
        *,
        group: int | None = None,
        affine: Affine = "both",
        eps: float = 1e-5,
        momentum: float = 0.1,
    ) -> None:
        super().__init__()
        self.group, self.eps, self.momentum = group, eps, momentum
        self.weight = None if affine == "none" else nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features)) if affine == "both" else None
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.long))
        self.after: nn.Module = nn.Identity()  # timm fuses its activation into its BN modules
        # In a pass that is computed again later, statistics are collected here, not tracked.
        self.deferred: list[Statistics] | None = None

    def forward(self, x: Float[Tensor, "n c *space"]) -> Float[Tensor, "n c *space"]:
        """Normalize each channel by its group's statistics, or by the running ones in eval mode."""
        if not self.training:
            y = F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
            return self.after(y)
        if (self.group is None and dist.world_size() > 1) or len(x) % (self.group or len(x)):
            y, statistics = self._across(x)
        else:
            y, statistics = self._local(x, self.group or len(x))
        if self.deferred is None:
            self.track(statistics)
        else:
            self.deferred.append(statistics)
        return self.after(y)

    def _local(self, x: Tensor, group: int) -> tuple[Tensor, Statistics]:
        """Normalize groups on this process: one pass if compiled, else one call per group."""
        count = x[:group].numel() // x.shape[1]
        if count < 2:
            raise UserError(
                f"Batch normalization got {count} value per channel in a group and needs two or "
                "more. Raise batch_size or method.bn_group."
            )
        if len(x) > group and torch.compiler.is_compiling():
            y, (means, var) = grouped_batch_norm(x, *self._affine(), group, self.eps)
        else:
            y, means, inverse = self._native(x, group)
            var = inverse.detach().pow(-2) - self.eps
            means = means.detach()
        return y, Statistics(means, var * (count / (count - 1)))

    def _native(self, x: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
        """Normalize by torch's kernel; also each group's mean and 1 / standard deviation."""
        settings = (*self._affine(), None, None, True, 0.0, self.eps)
        if len(x) == group:
            y, mean, inverse = torch.native_batch_norm(x, *settings)
            return y, mean[None], inverse[None]
        parts = [torch.native_batch_norm(part, *settings) for part in x.split(group)]
        out, means, inverses = zip(*parts, strict=True)
        return torch.cat(out), torch.stack(means), torch.stack(inverses)

    def _affine(self) -> tuple[Tensor | None, Tensor | None]:
        # The native kernel takes both or neither.
        if self.weight is not None and self.bias is None:
            return self.weight, torch.zeros_like(self.weight)
        return self.weight, self.bias

    def _across(self, x: Tensor) -> tuple[Tensor, Statistics]:
        """Normalize groups that span processes: one exchange forward, and one backward."""
        y, (means, var), count = spanning_batch_norm(x, *self._affine(), self.group, self.eps)
        return y, Statistics(means, var * count / (count - 1))

    def track(self, *chunks: Statistics) -> None:
        """Update running statistics by one batch, given in chunks: the mean over all its groups.

        Only of this process: `average_running_statistics` combines them once per step.
        """
        batch = chunks[0]
        if len(chunks) > 1:
            batch = Statistics(*map(torch.cat, zip(*chunks, strict=True)))
        self._track(batch.means.mean(dim=0), batch.variances.mean(dim=0))

    def _track(self, mean: Tensor, var: Tensor) -> None:
        # A batch with non-finite activations leads to a skipped step and must leave no trace. Its
        # variance is not finite either. Each operation on a running statistic costs time to
        # compile, and `isfinite` and `lerp_` are several.
        finite = var < math.inf
        for old, new in ((self.running_mean, mean), (self.running_var, var)):
            old.copy_(torch.where(finite, old + self.momentum * (new - old), old))
        self.num_batches_tracked.add_(1)  # assigning it would take the compiler ten times as long


class GroupedBatchNorm(torch.autograd.Function):
    """Batch norm over groups of rows, written so that the compiler needs few passes over memory.

    Takes the mean and 1 / standard deviation of every `size` rows, [parts, 1, channels, 1 ...]. The
    backward pass is written by hand: compiled from autograd's it saves more tensors and takes more
    passes. Where groups span processes, `group_of_part` says which group a part belongs to and
    `count` how many values per channel each group has; the backward pass then exchanges its sums.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        scale: Tensor,
        size: int,
        group_of_part: Tensor | None = None,
        count: Tensor | None = None,
    ) -> Tensor:
        """Normalize."""
        ctx.save_for_backward(x, weight, mean, scale, group_of_part, count)
        ctx.size = size
        y = (_split_rows(x, size)[0] - mean) * scale
        if weight is not None and bias is not None:
            y = y * weight.view(mean[:1].shape) + bias.view(mean[:1].shape)
        y = y.flatten(0, 1)
        # A cast that does nothing would lose the gradient when compiled (torch 2.11), and a view
        # could not be changed in place by the ReLU that follows.
        return y.clone() if y.dtype == x.dtype else y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Two sums over each group and channel give the gradients of input, weight and bias."""
        x, weight, mean, scale, group_of_part, count = ctx.saved_tensors
        h, dims = _split_rows(x, ctx.size)
        dy = _split_rows(grad_output, ctx.size)[0]
        xhat = (h - mean) * scale
        sum_dy, sum_dy_xhat = dy.sum(dims, keepdim=True), (dy * xhat).sum(dims, keepdim=True)
        if group_of_part is None:
            number = h[0].numel() // h.shape[2]
            mean_dy, mean_dy_xhat = sum_dy / number, sum_dy_xhat / number
        else:
            sums = torch.cat([sum_dy.flatten(1), sum_dy_xhat.flatten(1)], dim=1)
            means = _sum_groups(sums, group_of_part, len(count)) / count
            mean_dy, mean_dy_xhat = (
                part.view_as(mean) for part in means[group_of_part].to(dy.dtype).chunk(2, dim=1)
            )
        dx = (dy - mean_dy - xhat * mean_dy_xhat) * scale
        rest = (None,) * 5
        if weight is None:
            return dx.flatten(0, 1).to(x.dtype), None, None, *rest
        dx = (dx * weight.view(mean[:1].shape)).flatten(0, 1).to(x.dtype)
        dweight, dbias = (t.sum(0).flatten().to(weight.dtype) for t in (sum_dy_xhat, sum_dy))
        return dx, dweight, dbias, *rest


def grouped_batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, group: int, eps: float
) -> tuple[Tensor, Statistics]:
    """Normalize each group; return also each group's mean and biased variance per channel."""
    h, dims = _split_rows(x.detach(), group)
    var, mean = torch.var_mean(h, dims, correction=0, keepdim=True)
    y = GroupedBatchNorm.apply(x, weight, bias, mean, (var + eps).rsqrt(), group)
    return y, Statistics(mean.flatten(1), var.flatten(1))


def spanning_batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, group: int | None, eps: float
) -> tuple[Tensor, Statistics, Float[Tensor, "groups 1"]]:
    """Normalize groups of the global batch that span processes (None: one of all images).

    Also returns each group's mean, biased variance and number of values per channel. The rows of
    this process are divided into parts that each lie in one group, and the moments of all parts
    are added in one exchange: in float64, so that a mean far from zero costs no accuracy.
    """
    size = len(x) if group is None else math.gcd(len(x), group)
    parts = torch.arange(len(x) // size, device=x.device)
    if group is None:
        group_of_part, num_groups = parts, 1
    else:
        group_of_part = (dist.rank() * len(parts) + parts) // (group // size)
        num_groups = -(-len(x) * dist.world_size() // group)
    h, dims = _split_rows(x.detach(), size)
    if h.device.type == "cpu" and not torch.compiler.is_compiling():
        # var_mean takes several times as long, and torch's batch norm loses digits: in
        # channels_last it adds float32 values one after the other.
        mean = h.mean(dims, keepdim=True)
        var = (h - mean).square_().mean(dims, keepdim=True)
    else:
        var, mean = torch.var_mean(h, dims, correction=0, keepdim=True)
    shape, channels = mean.shape, mean.shape[2]
    m, v = mean.flatten(1).double(), var.flatten(1).double()
    moments = torch.cat([m, v + m.square(), torch.ones_like(m[:, :1])], dim=1)
    values = h[0].numel() // channels
    total = _sum_groups(moments * values, group_of_part, num_groups)
    count = total[:, -1:]
    means = total[:, :channels] / count
    variances = (total[:, channels:-1] / count - means.square()).clamp_min(0)
    statistics = Statistics(means.to(h.dtype), variances.to(h.dtype))
    scale = (statistics.variances + eps).rsqrt()[group_of_part].view(shape)
    y = GroupedBatchNorm.apply(
        x,
        weight,
        bias,
        statistics.means[group_of_part].view(shape),
        scale,
        size,
        group_of_part,
        count.to(h.dtype),
    )
    return y, statistics, count.to(h.dtype)


def _sum_groups(
    rows: Float[Tensor, "parts k"], group_of_part: Int64[Tensor, " parts"], num_groups: int
) -> Float[Tensor, "groups k"]:
    """Sum the rows of each group over all processes, in one exchange."""
    table = rows.new_zeros(num_groups, rows.shape[1])
    return dist.all_sum(table.index_add(0, group_of_part, rows))


def _split_rows(x: Tensor, size: int) -> tuple[Tensor, tuple[int, ...]]:
    """Every `size` rows, in at least float32, and the dimensions to sum over for their channels."""
    h = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(0, (-1, size))
    return h, (1, *range(3, h.dim()))


@torch.no_grad()
def average_running_statistics(module: nn.Module) -> None:
    """Average the running statistics of grouped batch norm over processes, in one exchange.

    Each process tracks its own groups: if moving averages start equal, their average is the moving
    average of the averages. Batch norm over all images has equal statistics on every process.
    """
    buffers = [
        buffer
        for norm in module.modules()
        if isinstance(norm, BatchNorm) and norm.group is not None
        for buffer in (norm.running_mean, norm.running_var)
    ]
    if dist.world_size() == 1 or not buffers:
        return
    mean = dist.mean(torch.cat(buffers))
    torch._foreach_copy_(buffers, mean.split([len(buffer) for buffer in buffers]))


def convert_batch_norm(module: nn.Module, group: int | None) -> nn.Module:
    """Replace torch's BN modules by ours and set the group size of all; names do not change."""
    if isinstance(module, BatchNorm):
        module.group = group
        return module
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        ours = BatchNorm(
            module.num_features,
            group=group,
            affine="both" if module.affine else "none",
            eps=module.eps,
            momentum=0.1 if module.momentum is None else module.momentum,
        )
        like = next(itertools.chain(module.parameters(), module.buffers()), None)
        if like is not None:
            ours.to(like)
        ours.load_state_dict(module.state_dict(), strict=False)
        ours.requires_grad_(all(p.requires_grad for p in module.parameters()))
        fused = [child for name, child in module.named_children() if name in ("drop", "act")]
        if fused:
            ours.after = nn.Sequential(*fused)
        return ours.train(module.training)
    for name, child in module.named_children():
        setattr(module, name, convert_batch_norm(child, group))
    return module


@torch.no_grad()
def track_statistics(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Track running statistics over these batches on this process, as training would.

    Each batch is one group. Nothing else in the network changes.
    """
    norms = [module for module in network.modules() if isinstance(module, BatchNorm)]
    groups, was_training = [norm.group for norm in norms], network.training
    network.train()
    for x in batches:
        for norm in norms:
            norm.group, norm.deferred = len(x), []
        network(x)
        for norm in norms:
            for means, variances in norm.deferred or ():
                norm._track(means.mean(dim=0), variances.mean(dim=0))
            norm.deferred = None
    for norm, group in zip(norms, groups, strict=True):
        norm.group = group
    network.train(was_training)


def shuffle_order(
    bn: BatchNormMode, at: RandomDraws, x: Tensor, num_keys: int = 1
) -> Int64[Tensor, " g"] | None:
    """The order in which a teacher encodes the images of all processes; None: not shuffled.

    With `num_keys` views of each image in one batch, the batch has view after view.
    """
    if bn == "sync" or (bn == "split" and num_keys == 1):
        return None
    # View after view, as one process would hold them, for any number of processes.
    world = dist.world_size()
    rows = torch.arange(world * len(x), device=x.device).view(world, num_keys, -1)
    rows = rows.transpose(0, 1).flatten()
    return rows[at.permutation("shuffle", len(rows), x.device)] if bn == "shuffle" else rows


def encode_in_order(net: nn.Module, x: Tensor, order: Int64[Tensor, " g"]) -> tuple[Tensor, Tensor]:
    """Encode the images of all processes in this order and undo it on the results (shuffled BN).

    Batch-norm groups then hold other images than the student's.
    """
    h, z = net(dist.gather(x)[dist.local_rows(order)])
    positions = torch.arange(len(order), device=order.device)
    inverse = dist.local_rows(torch.empty_like(order).scatter(0, order, positions))
    return dist.gather(h)[inverse], dist.gather(z)[inverse]


def check_whole_groups(module: nn.Module, num_rows: int) -> None:
    """Raise a UserError if groups of batch norm would mix the patches of one image.

    The patches form one batch, patch after patch: whole groups keep patches of an image apart.
    """
    group = next((m.group for m in module.modules() if isinstance(m, BatchNorm)), None)
    if group is not None and num_rows % group:
        raise UserError(
            f"Each process has {num_rows} images, which is not a multiple of method.bn_group "
            f"({group}), so groups of batch norm would mix patches. Use a batch_size whose share "
            'on each process is a multiple of method.bn_group, or method.bn "sync".'
        )
