"""BN over groups of the global batch: the same numbers on any number of processes."""

import pytest
import torch
from torch import nn

from sightline import dist
from sightline.errors import UserError
from sightline.nn.norm import BatchNorm, convert

ROWS, CHANNELS = 12, 5


def pictures(dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, CHANNELS, 3, 4, generator=g, dtype=dtype)
    return x * 3 + torch.randn(CHANNELS, 1, 1, generator=g, dtype=dtype) * 10


def layer(group, affine="both"):
    norm = BatchNorm(CHANNELS, group=group, affine=affine).double()
    g = torch.Generator().manual_seed(1)
    for p in norm.parameters():
        p.data = torch.randn(p.shape, generator=g, dtype=p.dtype)
    return norm


def forward_backward(group, affine="both"):
    """Output, input gradient, weight gradient and buffers of this process's share."""
    x = dist.mine(pictures()).clone().requires_grad_()
    norm = layer(group, affine)
    y = norm(x)
    weight = torch.linspace(-1, 1, y[0].numel(), dtype=y.dtype).view(y[0].shape)
    ((y**2 * weight).sum() * dist.world_size() / ROWS).backward()
    grads = [dist.all_sum(p.grad) / dist.world_size() for p in norm.parameters()]
    return y.detach(), x.grad, grads, [b.clone() for b in norm.buffers()]


@pytest.mark.parametrize("affine", ["both", "none"])
def test_one_group_is_torch_batch_norm(affine):
    x = pictures()
    ours, theirs = layer(None, affine), nn.BatchNorm2d(CHANNELS, affine=affine == "both").double()
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-12, rtol=1e-12)
    for mine, other in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), atol=1e-12, rtol=1e-12)


def test_scale_only_has_no_bias():
    norm = layer(None, "scale")
    torch.testing.assert_close(
        norm(pictures()).mean((0, 2, 3)), torch.zeros(CHANNELS).double(), atol=1e-9, rtol=0
    )
    assert norm.bias is None


@pytest.mark.parametrize("group", [3, 4, 6])
def test_groups_are_batch_norms_of_their_own_and_running_statistics_their_mean(group):
    x, norm = pictures(), layer(group)
    parts = []
    for part in x.split(group):
        single = layer(None)
        parts.append((single(part), single.running_mean, single.running_var))
    torch.testing.assert_close(norm(x), torch.cat([p[0] for p in parts]))
    torch.testing.assert_close(norm.running_mean, torch.stack([p[1] for p in parts]).mean(0))
    torch.testing.assert_close(norm.running_var, torch.stack([p[2] for p in parts]).mean(0))


@pytest.mark.parametrize("affine", ["both", "scale", "none"])
@pytest.mark.parametrize("group", [None, 2, 3, 4, 6, 12])
def test_two_processes_equal_one(two_processes, group, affine):
    """Groups that lie within one process (2, 3, 6) and groups that span both (4, 12)."""
    shares = two_processes(forward_backward, group, affine)
    y, grad, grads, buffers = forward_backward(group, affine)
    torch.testing.assert_close(torch.cat([s[0] for s in shares]), y)
    # The whole loss is the mean over processes, so a share's own gradient is divided by two.
    torch.testing.assert_close(torch.cat([s[1] for s in shares]) / 2, grad)
    for _, _, theirs, others in shares:
        torch.testing.assert_close(theirs, grads)
        torch.testing.assert_close(others, buffers)


def test_bf16_input_gives_bf16_output_near_float32():
    x = pictures(torch.float32)
    norm = BatchNorm(CHANNELS)
    low = norm(x.bfloat16())
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), norm(x), atol=0.05, rtol=0.05)


def test_a_single_value_per_channel_is_refused():
    with pytest.raises(UserError, match="two or more"):
        BatchNorm(4)(torch.randn(1, 4))


def test_convert_keeps_names_weights_and_timm_activations():
    import timm

    network = timm.create_model("resnet10t", num_classes=0)
    fused = timm.create_model("mobilenetv3_small_050", num_classes=0)
    for net in (network, fused):
        x = torch.randn(2, 3, 32, 32)
        before, names = net.eval()(x), set(net.state_dict())
        ours = convert(net, None).eval()
        assert set(ours.state_dict()) == names
        assert not any(isinstance(m, nn.BatchNorm2d) for m in ours.modules())
        torch.testing.assert_close(ours(x), before)
