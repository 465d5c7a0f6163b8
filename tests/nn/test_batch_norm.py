"""BN over groups of the global batch: the same numbers on any number of processes."""

import copy

import jaxtyping
import pytest
import torch
from torch import nn

from selfsight import dist
from selfsight.bench.communication import fake_processes
from selfsight.errors import UserError
from selfsight.nn.batch_norm import (
    BatchNorm,
    average_running_statistics,
    convert_batch_norm,
    grouped_batch_norm,
    spanning_batch_norm,
    track_statistics,
)
from selfsight.nn.group_and_layer_norm import StandardizedConv, replace_batch_norm

ROWS, CHANNELS = 12, 5


def images(dtype=torch.float64):
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
    x = dist.local_rows(images()).clone().requires_grad_()
    norm = layer(group, affine)
    y = norm(x)
    weight = torch.linspace(-1, 1, y[0].numel(), dtype=y.dtype).view(y[0].shape)
    ((y**2 * weight).sum() * dist.world_size() / ROWS).backward()
    average_running_statistics(norm)
    grads = [dist.all_sum(p.grad) / dist.world_size() for p in norm.parameters()]
    return y.detach(), x.grad, grads, [b.clone() for b in norm.buffers()]


@pytest.mark.parametrize("affine", ["both", "none"])
def test_one_group_is_torch_batch_norm(affine):
    x = images()
    ours, theirs = layer(None, affine), nn.BatchNorm2d(CHANNELS, affine=affine == "both").double()
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-12, rtol=1e-12)
    for mine, other in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), atol=1e-12, rtol=1e-12)


def test_scale_only_has_no_bias():
    norm = layer(None, "scale")
    torch.testing.assert_close(
        norm(images()).mean((0, 2, 3)), torch.zeros(CHANNELS).double(), atol=1e-9, rtol=0
    )
    assert norm.bias is None


@pytest.mark.parametrize("group", [3, 4, 6])
def test_groups_are_batch_norms_of_their_own_and_running_statistics_their_mean(group):
    x, norm = images(), layer(group)
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
    x = images(torch.float32)
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
        ours = convert_batch_norm(net, None).eval()
        assert set(ours.state_dict()) == names
        assert not any(isinstance(m, nn.BatchNorm2d) for m in ours.modules())
        torch.testing.assert_close(ours(x), before)


def test_convert_keeps_epsilon_momentum_mode_and_what_is_frozen():
    theirs = nn.BatchNorm2d(CHANNELS, eps=0.1, momentum=0.3).requires_grad_(False).eval()
    ours = convert_batch_norm(copy.deepcopy(theirs), None)
    assert not ours.training and not any(p.requires_grad for p in ours.parameters())
    x = images(torch.float32)
    torch.testing.assert_close(ours.train()(x), theirs.train()(x))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("affine", [True, False])
def test_convert_keeps_type_and_device(affine):
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, affine=affine)).double()
    x = torch.rand(8, 3, 2, 2, dtype=torch.float64)
    expected = net(x)
    ours = convert_batch_norm(net, None)
    torch.testing.assert_close(ours(x), expected)
    on_meta = convert_batch_norm(nn.BatchNorm2d(4, affine=affine, device="meta"), None)
    assert {tensor.device.type for tensor in on_meta.state_dict().values()} == {"meta"}


def test_layer_norm_for_rows_and_for_maps():
    """One group of group norm is layer norm over channels, and over channels and places."""
    rows, maps = torch.randn(4, 6), torch.randn(4, 6, 3, 2)
    norm = replace_batch_norm(BatchNorm(6, eps=0.1), "ln")
    torch.testing.assert_close(norm(rows), nn.functional.layer_norm(rows, (6,), eps=0.1))
    torch.testing.assert_close(norm(maps), nn.functional.layer_norm(maps, (6, 3, 2), eps=0.1))


@pytest.mark.parametrize("kind", ["ln", "ws"])
def test_replace_batch_norm_an_image_s_features_are_its_own(kind):
    from selfsight.backbones import BackboneConfig

    torch.manual_seed(0)
    network = BackboneConfig(name="resnet10_narrow", image_size=32).build()
    network = replace_batch_norm(convert_batch_norm(network, None), kind).train()
    x = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(network(x)[:1], network(x[:1]), atol=1e-5, rtol=1e-5)
    assert not any(isinstance(m, BatchNorm) for m in network.modules())


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (48, 16), (16, 16), (10, 2)])
def test_weight_standardization_has_as_many_groups_as_divide_the_channels(channels, groups):
    assert replace_batch_norm(BatchNorm(channels), "ws").num_groups == groups


def test_what_was_learned_or_left_out_of_a_norm_stays_so():
    for affine in ("both", "scale", "none"):
        before = layer(None, affine)
        after = replace_batch_norm(before, "ln")
        assert after.weight is before.weight and after.bias is before.bias
        assert after(images()).isfinite().all()


def test_standardized_weights_are_those_of_the_paper():
    """Each output channel's weights have mean 0 and deviation 1; the stored ones stay as drawn."""
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 5, 3, stride=2, padding=1)
    ours = replace_batch_norm(plain, "ws")
    assert isinstance(ours, StandardizedConv) and ours.weight is plain.weight
    w = plain.weight.flatten(1)
    w = (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) + 1e-5)
    x = torch.randn(2, 3, 8, 8)
    expected = nn.functional.conv2d(x, w.view_as(plain.weight), plain.bias, stride=2, padding=1)
    torch.testing.assert_close(ours(x), expected)


def test_the_norm_of_a_method_is_a_setting_and_batch_norm_its_default():
    from tests.methods.small import make

    def norms(**settings):
        found = make("byol", **settings).modules()
        return {type(m).__name__ for m in found if "Norm" in type(m).__name__}

    assert norms() == norms(norm="bn") == {"BatchNorm"}
    assert norms(norm="ln") == norms(norm="ws") == {"GroupNorm"}


@pytest.mark.parametrize("shape", [(12, 5), (12, 5, 3, 4)])
@pytest.mark.parametrize("affine", [True, False])
def test_groups_in_one_go_are_groups_one_by_one(shape, affine):
    """Values, statistics and gradients of what a compiler is given are those of native calls."""
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    pair = (weight, bias) if affine else (None, None)
    out, (means, variances) = grouped_batch_norm(x, *pair, 4, 1e-5)
    each = [
        torch.native_batch_norm(part, *pair, None, None, True, 0.0, 1e-5) for part in x.split(4)
    ]
    torch.testing.assert_close(out, torch.cat([y for y, _, _ in each]))
    torch.testing.assert_close(means, torch.stack([m for _, m, _ in each]))
    torch.testing.assert_close(variances, torch.stack([i for _, _, i in each]) ** -2 - 1e-5)
    slope = torch.randn_like(out)
    wanted = [x, weight, bias] if affine else [x]
    ours = torch.autograd.grad(out, wanted, slope)
    theirs = torch.autograd.grad(torch.cat([y for y, _, _ in each]), wanted, slope)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_a_batch_that_is_not_finite_leaves_the_running_statistics_alone():
    norm = BatchNorm(3)
    x = torch.randn(4, 3)
    x[1, 2] = torch.nan
    norm(x)
    assert bool(norm.running_mean.isfinite().all()) and bool(norm.running_var.isfinite().all())
    assert norm.running_mean[2] == 0 and norm.running_var[2] == 1


@pytest.mark.parametrize("group", [None, 32, 128])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_mean_far_from_zero_costs_no_accuracy(group, layout):
    """Half a million values per channel, more than float32 can add one after the other."""
    made = torch.Generator().manual_seed(0)
    x = torch.randn(128, 3, 64, 64, generator=made).add_(1000).to(memory_format=layout)
    _, (means, variances), _ = spanning_batch_norm(x, None, None, group, 1e-5)
    parts = x.double().split(group or len(x))
    exact = [torch.var_mean(part, (0, 2, 3), correction=0) for part in parts]
    expected = [torch.stack(each).float() for each in zip(*exact, strict=True)]
    torch.testing.assert_close([variances, means], expected, rtol=1e-6, atol=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it traces
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_compiled_grouped_norm_may_be_followed_by_an_in_place_relu(dtype, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # its checks cannot be traced
    torch._dynamo.reset()
    net = torch.nn.Sequential(BatchNorm(3, group=4), torch.nn.ReLU(inplace=True)).to(dtype)
    x = torch.randn(8, 3, 2, 2, dtype=dtype, requires_grad=True)
    expected = torch.autograd.grad(net(x).float().square().sum(), x)[0]
    compiled = torch.compile(net, backend="aot_eager")
    found = torch.autograd.grad(compiled(x).float().square().sum(), x)[0]
    tolerance = 1e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("group", [None, 4])
def test_tracked_statistics_are_those_of_torchs_batch_norm_in_training(group):
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten())
    ours = convert_batch_norm(copy.deepcopy(theirs), group).eval()
    batches = [torch.randn(6, 3, 8, 8) for _ in range(3)]
    for x in batches:
        theirs(x)
    track_statistics(ours, batches)
    assert not ours.training and ours[1].group == group and ours[1].deferred is None
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it traces
@pytest.mark.parametrize("group", [None, 6])
def test_batch_norm_across_processes_is_the_same_compiled(group, monkeypatch):
    """With one exchange each way in the graphs; that of a fake group gives back what it got."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # its checks cannot be traced
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    graphs = []

    def count(graph, inputs):
        sums = [node for node in graph.graph.nodes if "all_reduce" in str(node.target)]
        graphs.append(len(sums))
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=count, bw_compiler=count)
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    with fake_processes(2):
        found = []
        for network in (layer3(group), torch.compile(layer3(group), backend=backend)):
            y = network(x)
            grads = torch.autograd.grad(y.square().sum(), [x, *network.parameters()])
            found.append([y, *grads, *network.buffers()])
    torch.testing.assert_close(found[0], found[1])
    assert graphs == [1, 1]


def layer3(group):
    """Batch norm of three channels, between a convolution and a ReLU in place."""
    torch.manual_seed(0)
    parts = (nn.Conv2d(3, 3, 1), BatchNorm(3, group=group), nn.ReLU(inplace=True))
    return nn.Sequential(*parts).double()
