"""A batch in chunks gives what the whole batch gives, and keeps less of it in memory."""

import copy
from dataclasses import replace

import jaxtyping
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parallel import DistributedDataParallel

from selfsight import dist
from selfsight.backbones import BackboneConfig
from selfsight.errors import UserError
from selfsight.methods import METHODS
from selfsight.nn.batch_norm import BatchNorm, average_running_statistics
from selfsight.nn.combinatorial_patches import Patches
from selfsight.nn.ema_teacher import set_chunk_size
from selfsight.optim import Optim
from selfsight.recipe import Recipe
from selfsight.views import View
from tests.methods.small import SMALL, make, moment, views

SPLIT = {"bn": "split", "bn_group": 2}
NAMED = ["simclr", "mocov3", "fast_moco", "nnclr", "simo", "barlow_twins", "vicreg"]
CASES = [(name, SPLIT) for name in NAMED] + [
    ("mocov3", {"norm": "ln"}),
    ("nnclr", SPLIT | {"patches": Patches(), "heads": "fast_moco"}),
    ("simo", {"bn": "shuffle", "bn_group": 2, "symmetric": True}),
    ("jcl", SPLIT),
    ("moco", {"bn": "shuffle", "bn_group": 2, "symmetric": True}),
]


def trained(method, chunk, wrapped=lambda method: method, steps=2):
    """Losses, gradients and final state of a few steps, in float64."""
    method = method.double()
    if chunk:
        set_chunk_size(method, chunk)
    forward = wrapped(method)
    parameters = [p for p in method.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    losses, gradients = [], []
    for s in range(steps):
        optimizer.zero_grad()
        step = forward(views(method, s, dtype=torch.float64), moment(s))
        loss = step.loss
        loss.backward()
        losses.append(dist.mean(loss.detach()))
        gradients.append([p.grad.clone() for p in parameters])
        optimizer.step()
        method.after_step(moment(s), step)
        average_running_statistics(method)
    return losses, gradients, {k: v.clone() for k, v in method.state_dict().items()}


def same(mine, theirs, rtol=1e-10):
    """To the last bits in the first step; later ones magnify those."""
    for found, expected in zip(mine[:2], theirs[:2], strict=True):
        torch.testing.assert_close(found[0], expected[0], rtol=rtol, atol=1e-10)
    torch.testing.assert_close(mine, theirs, rtol=100 * rtol, atol=1e-9)


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_losses_gradients_statistics_and_teacher_are_those_of_the_whole(name, settings):
    whole = trained(make(name, **settings), None)
    for chunk in (2, 6) if name in ("fast_moco", "moco") else (6,):  # of 6, the last is smaller
        same(trained(make(name, **settings), chunk), whole)


def staged(**patches):
    """Fast-MoCo on a network with stages, where patches use parts of it."""
    torch.manual_seed(0)
    config = METHODS["fast_moco"](**SMALL["fast_moco"], **SPLIT, patches=Patches(**patches))
    return config.build(BackboneConfig(name="resnet8_narrow", image_size=32).build())


@pytest.mark.parametrize(
    "patches",
    [
        {"stage": "stage1", "pairs": "adjacent"},
        {"stage": "input", "pairs": "adjacent"},
        {"how": "encode_divide"},
        {"how": "montage"},
        {"how": "sample"},
    ],
    ids=str,
)
def test_parts_of_a_network_are_chunked_as_the_whole(patches):
    same(trained(staged(**patches), 4, steps=1), trained(staged(**patches), None, steps=1))


def averaged(name, chunk):
    return trained(make(name, **SPLIT), chunk, DistributedDataParallel)


@pytest.mark.parametrize("name", ["mocov3", "simclr", "fast_moco"])
def test_two_processes_in_chunks_equal_one_without(two_processes, name):
    whole = trained(make(name, **SPLIT), None)
    for theirs in two_processes(averaged, name, 2):
        same(theirs, whole, rtol=1e-9)


def vit(name="vit_t4"):
    """MoCo v3 with batch norm over the whole batch, but in its heads alone."""
    torch.manual_seed(0)
    config = METHODS["mocov3"](**SMALL["mocov3"], head="vit")
    backbone = BackboneConfig(name=name, image_size=16).build()
    backbone.blocks = backbone.blocks[:1]
    return config.build(backbone)


def test_a_network_without_batch_norm_keeps_it_in_its_heads():
    same(trained(vit(), 3), trained(vit(), None))


def size(tensors):
    return sum(x.numel() * x.element_size() for x in tensors)


def saved(method):
    """The size of what the forward pass keeps for the backward pass."""
    kept = []
    with saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        method(views(method), moment())
    return size(kept)


@pytest.mark.parametrize("name", NAMED)
def test_what_is_kept_is_the_images_and_what_the_heads_need(name):
    whole, method, frozen = (make(name, **SPLIT) for _ in range(3))
    set_chunk_size(method, 2)
    frozen.student.backbone.requires_grad_(False)
    # A head that hands a gradient on also keeps its weights, for each view.
    first = 2 * size([next(method.student.projector.parameters())])
    enough = size(views(method)) + saved(frozen) + first
    assert saved(method) <= enough < saved(whole)


def largest_batch(method, network):
    """The most rows that a network's convolution sees at once, in training and in backward."""
    seen = []
    conv = next(m for m in network.modules() if isinstance(m, torch.nn.Conv2d))
    handle = conv.register_forward_hook(lambda _, args, out: seen.append(len(out)))
    method(views(method), moment()).loss.backward()
    handle.remove()
    return max(seen)


@pytest.mark.parametrize("name", ["mocov3", "fast_moco"])
def test_student_and_teacher_see_a_chunk_at_a_time(name):
    method = make(name, **SPLIT)
    assert largest_batch(method, method.teacher) == 8
    set_chunk_size(method, 2)
    assert largest_batch(method, method.student) == largest_batch(method, method.teacher) == 2


def test_a_teacher_of_several_keys_sees_a_chunk_of_each_key_at_a_time():
    """Its groups of batch norm are as many times as large."""
    method = make("jcl", num_keys=3, **SPLIT)
    set_chunk_size(method, 2)
    assert largest_batch(method, method.student) == 2
    assert largest_batch(method, method.teacher) == 3 * 2


def test_names_width_and_copies_stay_as_they_are():
    method, whole = make("mocov3", **SPLIT), make("mocov3", **SPLIT)
    set_chunk_size(method, 2)
    assert list(method.state_dict()) == list(whole.state_dict())
    assert [n for n, _ in method.named_parameters()] == [n for n, _ in whole.named_parameters()]
    assert method.student.backbone.dim == whole.student.backbone.dim
    twin = copy.deepcopy(method.student.backbone)
    x = views(method)[0]
    before = method.student.backbone.eval()(x)
    for p in method.student.backbone.parameters():
        p.data.zero_()
    torch.testing.assert_close(twin.eval()(x), before)


def test_a_batch_counts_once_however_often_it_is_computed():
    method = make("simclr", **SPLIT)
    set_chunk_size(method, 2)
    method(views(method), moment()).loss.backward()
    norms = [m for m in method.student.backbone.modules() if isinstance(m, BatchNorm)]
    assert [int(n.num_batches_tracked) for n in norms] == [2] * len(norms)  # a batch for each view
    assert all(n.deferred is None for n in norms)


def test_random_layers_draw_the_same_when_a_chunk_is_computed_again():
    """With dropout the gradient of a linear layer shows which rows it kept."""
    method = make("simclr", norm="ln")
    backbone = method.student.backbone
    backbone.net.append(torch.nn.Dropout(0.5))
    set_chunk_size(method, 2)
    x = views(method)[0]
    torch.manual_seed(0)
    out = method.student.features(x)
    (gradient,) = torch.autograd.grad(out.sum(), backbone.net[5].bias)
    torch.testing.assert_close(gradient, 2.0 * (out != 0).sum(0))


@pytest.mark.parametrize(
    ("settings", "size", "sentence"),
    [
        ({}, 4, "--method.bn split --method.bn-group N"),
        ({}, 4, "--method.norm ln"),
        (SPLIT, 3, "not a multiple of batch norm's groups of 2"),
        (SPLIT, 0, "Use 1 or more"),
    ],
)
def test_chunks_that_would_change_the_statistics_are_refused(settings, size, sentence):
    with pytest.raises(UserError, match=sentence):
        set_chunk_size(make("mocov3", **settings), size)


def test_a_share_of_the_batch_without_whole_groups_is_refused():
    method = make("simclr", bn="split", bn_group=4)
    set_chunk_size(method, 4)
    with pytest.raises(UserError, match=r"multiple of method\.bn_group"):
        method([x[:6] for x in views(method)], moment())


def recipe(chunk, backbone="resnet8_narrow", **settings):
    return Recipe(
        method=METHODS["mocov3"](**settings),
        views=(View(size=32), View(size=32)),
        optim=Optim(),
        backbone=BackboneConfig(name=backbone, image_size=32),
        batch_size=64,
        chunk=chunk,
    )


def test_a_recipe_is_refused_before_anything_is_built(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    assert recipe(16, bn="split", bn_group=8).chunk == 16
    assert recipe(16, norm="ln").chunk == 16
    assert recipe(5, backbone="vit_t4").chunk == 5
    with pytest.raises(UserError, match="over the whole batch"):
        recipe(16)
    with pytest.raises(UserError, match="multiple of batch norm"):
        recipe(12, bn="split", bn_group=8)


def compiled_step(compiled):
    """Gradients and statistics of a chunked network, with what a chunk runs compiled or not."""
    method = make("simclr", **SPLIT).double()
    set_chunk_size(method, 2)
    if compiled:
        method.student.backbone.compile(backend="aot_eager")
    method(views(method, dtype=torch.float64), moment()).loss.backward()
    return [p.grad for p in method.parameters()], [b.clone() for b in method.buffers()]


@pytest.mark.slow
def test_a_compiled_chunk_gives_the_same(two_processes):
    plain, compiled = (two_processes(compiled_step, compiled) for compiled in (False, True))
    torch.testing.assert_close(compiled, plain, rtol=1e-10, atol=1e-10)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of torch's own, while it compiles
def test_a_batch_of_4096_for_a_resnet50_takes_less_than_24_gibibytes():
    config = METHODS["mocov3"](bn="split", bn_group=128)
    method = config.build(BackboneConfig(name="resnet50").build()).cuda()
    method = method.to(memory_format=torch.channels_last).train()
    set_chunk_size(method, 128)
    index = torch.arange(4096, device="cuda")
    images = [torch.rand(4096, 3, 224, 224, device="cuda") for _ in range(2)]
    images = [x.contiguous(memory_format=torch.channels_last) for x in images]
    at = replace(moment(), step=torch.tensor(0, device="cuda"), index=index, labels=None)
    torch.cuda.reset_peak_memory_stats()
    with torch.autocast("cuda", torch.bfloat16):
        loss = method(images, at).loss
    loss.backward()
    assert loss.isfinite() and torch.cuda.max_memory_allocated() < 24 * 2**30
