"""The streamed losses equal the dense ones, in values and gradients, and hold no matrix."""

import math

import jaxtyping
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

from selfsight import dist
from selfsight.losses import blockwise_contrastive, info_nce, jcl, nt_xent, queue_info_nce
from selfsight.losses.blockwise_contrastive import mean_contrastive_nll
from selfsight.losses.contrastive import neighbor_info_nce

N, D, K = 24, 16, 40


def rows(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, D, generator=generator, dtype=torch.float64).to(dtype)


LOSSES = {
    "info_nce": lambda x: info_nce(x[0], x[1], temperature=0.1),
    "info_nce with EqCo's margin": lambda x: info_nce(x[0], x[1], temperature=0.2, alpha=1e4),
    "info_nce of three blocks": lambda x: info_nce(
        torch.stack([x[0], x[2], x[0] + x[2]]), x[1], temperature=0.2
    ),
    "neighbors": lambda x: neighbor_info_nce(x[0], torch.stack([x[1], x[2]]), temperature=0.2),
    "nt_xent": lambda x: nt_xent(x[0], x[1], temperature=0.1),
    "nt_xent with EqCo's margin": lambda x: nt_xent(x[0], x[1], temperature=0.1, alpha=1e4),
    "nt_xent across views": lambda x: nt_xent(x[0], x[1], temperature=0.1, cross=True),
    "nt_xent across views with EqCo's margin": lambda x: nt_xent(
        x[0], x[1], temperature=0.1, cross=True, alpha=1e4
    ),
    "queue": lambda x: queue_info_nce(x[0], x[1], x[3], temperature=0.2, alpha=99.0),
    "queue with two keys": lambda x: queue_info_nce(x[0], x[1:3], x[3], temperature=0.2),
    "jcl": lambda x: jcl(x[0], x[1:3], x[3], temperature=0.2, strength=4.0),
}


def with_gradient(loss, dtype=torch.float64):
    """Of this process's share: value and gradients, both as means over processes."""
    x = torch.stack([dist.local_rows(rows(N, seed=s)) for s in range(4)]).to(dtype).requires_grad_()
    value = LOSSES[loss](x)
    (gradient,) = torch.autograd.grad(value, x)
    return dist.mean(value.detach()), gradient / dist.world_size()


def streamed(loss, most, dtype=torch.float64):
    """The same with so few similarities held at once."""
    before, blockwise_contrastive.BLOCK_SIZE, blockwise_contrastive.MAX_BLOCKS = (
        blockwise_contrastive.BLOCK_SIZE,
        most,
        1,
    )
    try:
        return with_gradient(loss, dtype)
    finally:
        blockwise_contrastive.BLOCK_SIZE, blockwise_contrastive.MAX_BLOCKS = before, 4


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("most", [1, 100, 500])
def test_every_block_size_gives_the_dense_loss(loss, most):
    torch.testing.assert_close(streamed(loss, most), with_gradient(loss), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_float32_is_as_exact_as_the_dense_loss(loss):
    mine = streamed(loss, 200, torch.float32)
    torch.testing.assert_close(mine, with_gradient(loss, torch.float32), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_two_processes_equal_one(two_processes, loss):
    value, gradient = with_gradient(loss)
    if "queue" in loss or loss == "jcl":  # a queue is everyone's: each process has its own half
        shares = two_processes(with_gradient, loss)
        value, gradient = shares[0][0], torch.cat([s[1] for s in shares], 1)
    shares = two_processes(streamed, loss, 60)
    torch.testing.assert_close(shares[0][0], value)
    torch.testing.assert_close(torch.cat([s[1] for s in shares], 1), gradient)


def test_the_gradient_is_that_of_the_value(monkeypatch):
    monkeypatch.setattr(blockwise_contrastive, "MAX_BLOCKS", 1)
    monkeypatch.setattr(blockwise_contrastive, "BLOCK_SIZE", 20)
    q, keys, positive = rows(5, seed=1), rows(7, seed=2), rows(3, seed=3)[:, :5]
    taken = torch.tensor([[0, 1], [2, 1], [6, 5], [3, 0], [4, 2]])
    inputs = [x.contiguous().requires_grad_() for x in (q, keys, positive)]
    assert torch.autograd.gradcheck(lambda *x: mean_contrastive_nll(*x, taken, scale=0.5), inputs)


def test_far_apart_logits_stay_finite(monkeypatch):
    """Key and two negatives at opposite ends, over a tiny temperature: log(1 + 2 e^-x)."""
    monkeypatch.setattr(blockwise_contrastive, "MAX_BLOCKS", 1)
    monkeypatch.setattr(blockwise_contrastive, "BLOCK_SIZE", 1)
    q = torch.eye(2).requires_grad_()
    for sign, expected in ((1, 0.0), (-1, 2000.0 + math.log(2))):
        queue = -sign * q.detach()[:1].repeat(2, 1)
        loss = queue_info_nce(q[:1], sign * q.detach()[:1], queue, temperature=0.001)
        assert loss.item() == pytest.approx(expected, rel=1e-6, abs=1e-6)
        assert torch.autograd.grad(loss, q)[0].isfinite().all()


class Seen(TorchDispatchMode):
    """The products that are made, and the elements of the largest tensor."""

    def __init__(self):
        super().__init__()
        self.products, self.largest = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.products += function.overloadpacket.__name__ in ("mm", "addmm_")
        out = function(*args, **kwargs or {})
        made = out if isinstance(out, tuple | list) else [out]
        self.largest = max([self.largest, *(t.numel() for t in made if torch.is_tensor(t))])
        return out


@pytest.fixture
def seen(monkeypatch):
    """A look into the operator, which hides what it does from whoever traces it."""
    monkeypatch.setattr(blockwise_contrastive, "operator", blockwise_contrastive.nll_and_grads)
    return Seen()


@pytest.mark.parametrize(
    ("needs", "products"), [((True, True), 3), ((True, False), 2), ((False, False), 1)]
)
def test_a_block_costs_one_product_and_one_for_each_gradient(needs, products, seen, monkeypatch):
    monkeypatch.setattr(blockwise_contrastive, "MAX_BLOCKS", 1)
    monkeypatch.setattr(blockwise_contrastive, "BLOCK_SIZE", 8 * K)
    q, keys = rows(N, seed=1).requires_grad_(needs[0]), rows(K, seed=2).requires_grad_(needs[1])
    positive = rows(N, seed=3)[:, 0].requires_grad_()
    with seen:
        mean_contrastive_nll(q, keys, positive).backward()
    assert seen.products == products * N / 8


@pytest.mark.parametrize("loss", LOSSES)
def test_nothing_as_large_as_the_matrix_is_ever_made(loss, seen, monkeypatch):
    monkeypatch.setattr(blockwise_contrastive, "MAX_BLOCKS", 1)
    monkeypatch.setattr(blockwise_contrastive, "BLOCK_SIZE", 4 * N * D)
    x = torch.stack([rows(N * 8, seed=s) for s in range(4)]).requires_grad_()
    with seen:
        LOSSES[loss](x).backward()
    assert seen.largest <= x.numel() < (N * 8) ** 2


def compiled():
    """Graphs and operations of a compiled loss, and its gradients beside the uncompiled ones.

    One process computes it in six blocks, the other in two.
    """
    most = (2 * N, 6 * N)[dist.rank()]
    q, k = (dist.local_rows(rows(N, seed=s, dtype=torch.float32)).requires_grad_() for s in (0, 1))
    counter = CompileCounterWithBackend("aot_eager")

    def gradients(loss):
        return torch.autograd.grad(loss(q, k, temperature=0.2), (q, k))

    before, blockwise_contrastive.BLOCK_SIZE, blockwise_contrastive.MAX_BLOCKS = (
        blockwise_contrastive.BLOCK_SIZE,
        most,
        1,
    )
    try:
        torch.compiler.reset()
        mine = gradients(torch.compile(info_nce, fullgraph=True, backend=counter))
        return counter.frame_count, counter.op_count, mine, gradients(info_nce)
    finally:
        blockwise_contrastive.BLOCK_SIZE, blockwise_contrastive.MAX_BLOCKS = before, 4


def test_a_compiled_loss_is_one_graph_whose_size_does_not_grow(two_processes):
    sizes = set()
    for graphs, operations, mine, eager in two_processes(compiled):
        assert graphs == 1
        torch.testing.assert_close(mine, eager)
        sizes.add(operations)
    assert len(sizes) == 1


def test_what_compiles_is_what_the_operator_says():
    """Shapes promised to the compiler are those made, and inputs stay as they are."""
    q, keys, positive = rows(5, seed=1), rows(7, seed=2), rows(2, seed=3)[:, :5]
    for of_q, of_keys in ((True, True), (True, False), (False, False)):
        arguments = (q, keys, positive, torch.zeros(5, 1).long(), 0.5, 2, of_q, of_keys)
        torch.library.opcheck(
            blockwise_contrastive.operator, arguments, test_utils=("test_schema", "test_faketensor")
        )


def test_small_matrices_are_dense_and_large_ones_are_not():
    assert not blockwise_contrastive.is_streamed(
        4096, 4096
    ) and not blockwise_contrastive.is_streamed(256, 65536)
    assert blockwise_contrastive.is_streamed(65536, 65536)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of torch's own, while it compiles
def test_65536_images_take_less_than_a_gibibyte():
    z1, z2 = (torch.randn(65536, 256, device="cuda", requires_grad=True) for _ in range(2))
    z1.grad, z2.grad = torch.zeros_like(z1), torch.zeros_like(z2)
    for loss in (info_nce, nt_xent):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        value = loss(z1, z2, temperature=0.2)
        value.backward()
        assert math.isfinite(value.item())
        assert torch.cuda.max_memory_allocated() - before < 2**30


def test_a_second_derivative_is_refused():
    """The slopes are made with the loss; through them torch would find another, wrong one."""
    q, keys = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3)
    loss = mean_contrastive_nll(q, keys, torch.zeros(4)) * q.square().mean()
    (slope,) = torch.autograd.grad(loss, q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


@pytest.mark.filterwarnings("ignore")  # torch's own, while it traces
@pytest.mark.parametrize("loss", LOSSES)
def test_a_compiled_loss_has_the_gradient_of_the_dense_one(loss, monkeypatch):
    value, gradient = with_gradient(loss)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # its checks cannot be traced
    torch.compiler.reset()
    traced = torch.compile(LOSSES[loss], fullgraph=True, backend="aot_eager")
    monkeypatch.setitem(LOSSES, loss, traced)
    torch.testing.assert_close(streamed(loss, 100), (value, gradient), rtol=1e-10, atol=1e-12)
