"""Fast-MoCo: its equation in loops, its special rules, its cost."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from selfsight.catalog import build_recipe
from selfsight.conformance.processes_and_resume_checks import compare_traces, train
from selfsight.errors import UserError
from selfsight.methods import METHODS
from selfsight.nn import Backbone
from selfsight.nn.batch_norm import BatchNorm
from selfsight.nn.combinatorial_patches import Patches
from tests.methods.small import SMALL, make, moment, small, views

OTHERS = ("byol", "nnclr", "simsiam")


def by_hand(method, x_a, x_b, temperature):
    """Algorithm 1: the six combinations of one view against the other view whole."""
    half = x_a.shape[2] // 2
    patches = [x_a[:, :, i : i + half, j : j + half] for j in (0, half) for i in (0, half)]
    v = method.student.backbone(torch.cat(patches)).chunk(4)
    c = torch.cat([(v[i] + v[j]) / 2 for i in range(4) for j in range(i + 1, 4)])
    blocks = method.predictor(method.student.projector(c)).chunk(6)
    targets = method.teacher(x_b)[1]
    losses = []
    for block in blocks:
        for i, q in enumerate(block):
            logits = [F.cosine_similarity(q, k, dim=0) / temperature for k in targets]
            losses.append(torch.logsumexp(torch.stack(logits), 0) - logits[i])
    return sum(losses) / len(losses)


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_the_loss_is_algorithm_1_averaged_over_twelve_terms(temperature):
    method = make("fast_moco", temperature=temperature)
    x1, x2 = views(method)
    expected = by_hand(copy.deepcopy(method), x1, x2, temperature)
    expected = (expected + by_hand(copy.deepcopy(method), x2, x1, temperature)) / 2
    torch.testing.assert_close(method([x1, x2], moment()).loss, expected)


def test_a_third_view_is_held_against_both_others_and_is_no_target():
    method = make("fast_moco", multicrop=True)
    x1, x2, x3 = views(method)
    pairs = [(x1, x2), (x2, x1), (x3, x1), (x3, x2)]
    a, b, c, d = (by_hand(copy.deepcopy(method), *pair, 1.0) for pair in pairs)
    torch.testing.assert_close(method([x1, x2, x3], moment()).loss, (a + b + (c + d) / 2) / 3)


def test_the_teacher_follows_at_a_constant_rate():
    method = make("fast_moco")
    for p in method.student.parameters():
        p.data.add_(1.0)
    for step in (0, 99):
        before = [p.clone() for p in method.teacher.parameters()]
        method.after_step(moment(step), method(views(method), moment(step)))
        moved = zip(before, method.teacher.parameters(), method.student.parameters(), strict=True)
        for old, new, online in moved:
            torch.testing.assert_close(new, 0.99 * old + 0.01 * online)


@pytest.mark.parametrize("name", ["fast_moco", "mocov3"])
def test_a_teacher_of_its_own_moves_once_before_it_is_used(name):
    """As in the released code, which moves it at the start of each forward."""
    method = make(name, copy_init=False)
    pairs = zip(method.teacher.parameters(), method.student.parameters(), strict=True)
    assert any(not torch.equal(t, s) for t, s in pairs)
    assert method.teacher.momentum == 0.99


def test_one_patch_is_the_whole_view():
    """Uncut, a method with patches is the method itself, but for BYOL's sum over directions."""
    whole = Patches(split=1, combine=1)
    for name, factor in (("simsiam", 1), ("byol", 2), ("nnclr", 1), ("fast_moco", 1)):
        plain, cut = make(name, patches=Patches(how="off")), make(name, patches=whole)
        x = views(plain)
        loss = plain(x, moment()).loss
        torch.testing.assert_close(factor * cut(x, moment()).loss, loss)


@pytest.mark.parametrize("name", ["byol", "simsiam", "nnclr"])
def test_other_methods_average_over_combinations_and_directions(name):
    """With a predictor that says the same for all, every combination costs the same."""
    method = make(name, heads="fast_moco", patches=Patches())
    with torch.no_grad():
        method.predictor[-1].weight.zero_()
    uncut = make(name, heads="fast_moco", patches=Patches(split=1, combine=1))
    uncut.load_state_dict(method.state_dict())
    x = views(method)
    torch.testing.assert_close(method(x, moment()).loss, uncut(x, moment()).loss)


@pytest.mark.parametrize(
    ("name", "settings", "part"),
    [
        ("byol", {"patches": Patches()}, "teacher"),
        ("nnclr", {"patches": Patches(), "teacher_momentum": 0.9}, "teacher"),
        ("nnclr", {"teacher_momentum": 0.9}, "student"),
        ("simsiam", {"patches": Patches()}, "student"),
    ],
    ids=str,
)
def test_features_are_those_of_the_whole_first_view(name, settings, part):
    """Of the student where it encodes whole views, else of the teacher."""
    method = make(name, **settings).eval()
    for p in method.teacher.parameters() if hasattr(method, "teacher") else []:
        p.data.mul_(1.5)
    net = {"student": method.student, "teacher": getattr(method, "teacher", None)}[part]
    x = views(method)
    torch.testing.assert_close(method(x, moment()).features, net(x[0])[0])


PATCHED = {
    "fast_moco": dict(patches=Patches(how="sample"), multicrop=True),
    "nnclr": dict(patches=Patches(), heads="fast_moco", teacher_momentum=0.99),
    "simsiam": dict(patches=Patches(combine=3), heads="fast_moco"),
}


@pytest.mark.parametrize("name", PATCHED)
def test_patches_on_two_processes_equal_one(two_processes, name):
    subject = small(name, **PATCHED[name])
    one = train(subject)
    for several in two_processes(train, subject):
        compare_traces(one, several)


ALTERNATIVES = [
    Patches(how="sample"),
    Patches(how="montage"),
    Patches(stage="stage2", pairs="adjacent"),
]


class Staged(Backbone):
    """One layer and a pool, since tracing a whole ResNet takes long."""

    dim = 6

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, self.dim, 3, stride=2), nn.BatchNorm2d(self.dim))

    def forward_to_stage(self, x, stage):
        return self.net(x)

    def forward_from_stage(self, x, stage):
        return x.mean((2, 3))

    def forward(self, x):
        return self.forward_from_stage(self.forward_to_stage(x, 1), 1)


def traced(patches):
    """Losses of the eager and of the traced method; tracing stops at a graph break."""
    torch.manual_seed(0)
    config = METHODS["fast_moco"](**SMALL["fast_moco"], patches=patches)
    method = config.build(Staged())
    expected = copy.deepcopy(method)(views(method), moment()).loss.detach()
    torch._dynamo.reset()
    whole = torch.compile(method, fullgraph=True, backend="eager")
    return expected, whole(views(method), moment()).loss.detach()


@pytest.mark.slow
@pytest.mark.parametrize("patches", ALTERNATIVES, ids=lambda p: f"{p.how}-{p.stage}")
def test_alternatives_trace_without_a_graph_break_on_two_processes(two_processes, patches):
    for expected, found in two_processes(traced, patches):
        torch.testing.assert_close(found, expected)


def test_views_that_do_not_divide_are_refused_at_the_recipe():
    made = build_recipe("fast_moco.imagenet_r50_100ep")
    odd = tuple(replace(view, size=225) for view in made.views)
    others = [build_recipe(f"{name}.imagenet_r50_patches_100ep") for name in OTHERS]
    for method in (r.method for r in (made, *others)):
        with pytest.raises(UserError, match="225 pixels does not divide"):
            replace(made, method=method, views=odd)


def heads(recipe):
    """Its projector and predictor, in words, on a network that has its width alone."""
    with torch.device("meta"):
        backbone = Staged()
        backbone.dim = 2048
        method = recipe.method.build(backbone)
    return str(method.student.projector), str(method.predictor)


def test_other_methods_keep_fast_mocos_views_and_optimizer():
    theirs = build_recipe("fast_moco.imagenet_r50_100ep")
    for name in OTHERS:
        mine = build_recipe(f"{name}.imagenet_r50_patches_100ep")
        assert replace(mine, method=theirs.method) == theirs, name
        assert heads(mine) == heads(theirs), name


@torch.no_grad()
def multiply_adds(name):
    """Of one view in one step: forward and backward of the student, forward of the teacher."""
    made = build_recipe(name)
    with torch.device("meta"):
        method = made.method.build(made.backbone.build())
        x = torch.empty(1, 3, made.views[0].size, made.views[0].size)
        with FlopCounterMode(display=False) as of_student:
            _, z = method.student(x, moment()) if "fast" in name else method.student(x)
            method.predictor(z)
        with FlopCounterMode(display=False) as of_teacher:
            method.teacher(x)
    # Two operations each; backward costs two forward passes.
    return (3 * of_student.get_total_flops() + of_teacher.get_total_flops()) / 2


def test_a_step_costs_what_one_of_mocov3_costs(monkeypatch):
    # What takes longest and multiplies little.
    for kind in (BatchNorm, nn.BatchNorm2d):
        monkeypatch.setattr(kind, "forward", lambda self, x: x)
    for draw in ("normal_", "uniform_"):
        monkeypatch.setattr(torch.Tensor, draw, lambda x, *_, **__: x)
    ours = multiply_adds("fast_moco.imagenet_r50_100ep")
    theirs = multiply_adds("mocov3.imagenet_r50_100ep")
    assert theirs == pytest.approx(4 * 4.09e9, rel=0.02)
    assert ours == pytest.approx(theirs, rel=0.1)
