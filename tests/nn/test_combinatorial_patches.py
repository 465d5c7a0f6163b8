"""Divide, encode, combine: by properties that do not depend on how they are written."""

import copy
from itertools import combinations
from math import comb

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from selfsight import dist
from selfsight.backbones.resnet import BasicBlock, ResNet
from selfsight.errors import UserError
from selfsight.nn import Backbone, mlp
from selfsight.nn.batch_norm import BatchNorm, check_whole_groups
from selfsight.nn.combinatorial_patches import (
    OFF,
    Patches,
    PatchStudent,
    average_groups,
    divide,
    pool_patches,
    sample_patches,
    stitch,
)
from tests.methods.small import make, moment


class Pointwise(Backbone):
    """Every pixel on its own, so that a patch does not see its neighbors."""

    dim = 5

    def __init__(self):
        super().__init__()
        self.net = nn.Conv2d(3, self.dim, 1)

    def forward_to_stage(self, x, stage):
        return self.net(x)

    def forward(self, x):
        return self.net(x).mean((2, 3))


def images(n=8, size=16, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 3, size, size, generator=generator, dtype=dtype)


def network(backbone=None, patches=OFF):
    torch.manual_seed(0)
    backbone = backbone or ResNet(BasicBlock, (1, 1, 1, 1), width=2, stem="lowres")
    student = PatchStudent(backbone, mlp(backbone.dim, 8, 6), patches).double()
    return student, mlp(6, 8, 6).double()


def predict(student, predictor, x, view=0):
    """As Fast-MoCo predicts, at whichever stage patches are combined."""
    _, z = student(x, moment(), view=view)
    return student.combine(predictor(z), "pred", view=view)


@settings(max_examples=25, deadline=None)
@given(split=st.integers(1, 4), n=st.integers(1, 3), h=st.integers(1, 3), w=st.integers(1, 3))
def test_divide_then_stitch_is_the_image(split, n, h, w):
    x = torch.randn(n, 2, split * h, split * w)
    parts = divide(x, split)
    assert torch.equal(stitch(parts, split), x)
    for column in range(split):
        for row in range(split):
            part = x[:, :, row * h : (row + 1) * h, column * w : (column + 1) * w]
            assert torch.equal(parts[column * split + row], part)


def test_four_patches_are_numbered_down_the_columns():
    x = torch.tensor([[[[0.0, 2.0], [1.0, 3.0]]]])
    assert divide(x, 2).flatten().tolist() == [0, 1, 2, 3]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3).flatmap(lambda s: st.tuples(st.just(s), st.integers(1, s * s))))
def test_every_combination_is_there_once_and_in_order(sizes):
    split, n = sizes
    groups = Patches(split=split, combine=n).combinations(0)
    assert len(set(groups)) == len(groups) == comb(split**2, n)
    assert groups == sorted(groups) and all(len(set(group)) == n for group in groups)
    v = torch.randn(split**2, 2, 3, dtype=torch.float64)
    means = average_groups(v, groups)
    for block, group in zip(means, groups, strict=True):
        torch.testing.assert_close(block, sum(v[i] for i in group) / n)
    # Every patch is in as many combinations as any other.
    torch.testing.assert_close(means.mean(0), v.mean(0))


def test_two_of_four_in_the_order_of_the_authors_code():
    assert Patches().combinations(0) == list(combinations(range(4), 2))
    assert Patches().combinations(0)[0] == (0, 1) and Patches().combinations(1)[-1] == (2, 3)


def test_predictions_are_made_of_averaged_patches():
    student, predictor = network(Pointwise(), Patches())
    x = images()
    corners = [x[:, :, i : i + 8, j : j + 8] for j in (0, 8) for i in (0, 8)]
    v = [student.backbone(corner) for corner in corners]
    rows = torch.cat([(v[i] + v[j]) / 2 for i in range(4) for j in range(i + 1, 4)])
    expected = predictor(student.projector(rows)).view(6, 8, -1)
    torch.testing.assert_close(predict(student, predictor, x), expected)


@pytest.mark.parametrize("view", [0, 1])
def test_combined_at_the_input_are_halves_of_the_view(view):
    student, predictor = network(patches=Patches(stage="input", pairs="adjacent"))
    x = images()
    halves = [x[..., :8], x[..., 8:]] if view == 0 else [x[:, :, :8], x[:, :, 8:]]
    expected = predictor(student.projector(student.backbone(torch.cat(halves))))
    found = predict(student, predictor, x, view)
    torch.testing.assert_close(found, expected.view(2, 8, -1))


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("view", [0, 1])
def test_combined_after_a_stage_are_maps_laid_side_by_side(stage, view):
    student, predictor = network(patches=Patches(stage=f"stage{stage}", pairs="adjacent"))
    x = images()
    corners = torch.cat([x[:, :, i : i + 8, j : j + 8] for j in (0, 8) for i in (0, 8)])
    tl, bl, tr, br = student.backbone.forward_to_stage(corners, stage).chunk(4)
    if view == 0:
        maps = torch.cat([torch.cat([tl, bl], 2), torch.cat([tr, br], 2)])
    else:
        maps = torch.cat([torch.cat([tl, tr], 3), torch.cat([bl, br], 3)])
    expected = predictor(student.projector(student.backbone.forward_from_stage(maps, stage)))
    found = predict(student, predictor, x, view)
    torch.testing.assert_close(found, expected.view(2, 8, -1))


def test_with_linear_heads_it_does_not_matter_where_vectors_are_averaged():
    found = []
    for stage in ("final", "proj", "pred"):
        student, _ = network(patches=Patches(stage=stage))
        student.projector, predictor = nn.Linear(16, 6).double(), nn.Linear(6, 6).double()
        found.append(predict(student, predictor, images()))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_with_bent_heads_it_does():
    found = [
        predict(*network(patches=Patches(stage=stage)), images())
        for stage in ("final", "proj", "pred")
    ]
    assert not torch.allclose(found[0], found[1]) and not torch.allclose(found[1], found[2])


def test_sampled_patches_are_cut_from_their_own_image_anywhere():
    size, count = 12, 300
    where = torch.arange(size * size, dtype=torch.float64).view(1, 1, size, size)
    x = where + 1000 * torch.arange(count).view(-1, 1, 1, 1)
    parts = sample_patches(
        x, 3, torch.rand(count, 18, generator=torch.Generator().manual_seed(0)).double()
    )
    assert parts.shape == (9, count, 1, 4, 4)
    corner = parts[:, :, 0, 0, 0]
    assert torch.equal(parts[:, :, 0], corner[..., None, None] + where[0, 0, :4, :4])
    assert torch.equal(corner // 1000, torch.arange(count).expand(9, -1).double())
    rows, columns = (corner % 1000) // size, corner % 1000 % size
    for places in (rows, columns):
        assert sorted(set(places.flatten().tolist())) == list(range(9))


def test_the_two_views_are_sampled_at_places_of_their_own():
    student, _ = network(Pointwise(), Patches(how="sample"))
    first, second = (student.encode_patches(images(), moment(), view=v) for v in (0, 1))
    assert not torch.allclose(first, second)


def test_divided_maps_are_pooled_patch_by_patch():
    maps = images()
    torch.testing.assert_close(pool_patches(maps, 2), divide(maps, 2).mean((3, 4)))
    uneven = torch.randn(2, 3, 7, 5, dtype=torch.float64)
    expected = F.adaptive_avg_pool2d(uneven, 3).permute(3, 2, 0, 1).flatten(0, 1)
    torch.testing.assert_close(pool_patches(uneven, 3), expected)


def test_if_pixels_do_not_meet_it_does_not_matter_when_a_view_is_divided():
    backbone = Pointwise()
    found = [
        network(backbone, Patches(how=how))[0].encode_patches(images(), moment(), view=0)
        for how in ("divide", "encode_divide", "montage")
    ]
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_a_montage_is_of_different_images():
    class Spy(Pointwise):
        def forward_to_stage(self, x, stage):
            self.seen = x
            return super().forward_to_stage(x, stage)

    student, _ = network(Spy(), Patches(how="montage"))
    x = torch.arange(8.0).double().view(8, 1, 1, 1).expand(8, 3, 16, 16)
    student.encode_patches(x, moment(), view=0)
    corners = student.backbone.seen[:, 0, ::15, ::15].flatten(1)
    assert all(len(set(row.tolist())) == 4 for row in corners)
    assert all(sorted(column.tolist()) == list(range(8)) for column in corners.T)


def shared(how):
    """This process's share of the predictions and the gradient of a loss on them."""
    student, predictor = network(patches=Patches(how=how))
    x = dist.local_rows(images())
    p = predict(student.eval(), predictor.eval(), x)
    p.pow(2).mean().backward()
    gradients = [dist.mean(q.grad) for q in student.parameters()]
    return dist.gather(p.detach().transpose(0, 1).contiguous()), gradients


@pytest.mark.parametrize("how", ["sample", "montage"])
def test_two_processes_draw_and_mix_as_one_does(two_processes, how):
    expected = shared(how)
    for found in two_processes(shared, how):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_off_and_without_a_moment_it_is_the_plain_encoder():
    x = images()
    for patches, at in ((OFF, moment()), (Patches(), None)):
        student, _ = network(patches=patches)
        expected = copy.deepcopy(student.whole_views())(x)
        assert all(torch.equal(a, b) for a, b in zip(student(x, at), expected, strict=True))


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        (dict(combine=5), "at most all"),
        (dict(combine=0), "1 or more"),
        (dict(stage="stage2"), "neighbors"),
        (dict(stage="input", pairs="adjacent", how="sample"), "neighbors"),
        (dict(pairs="adjacent", split=3), "2 x 2 grid"),
    ],
)
def test_what_cannot_be_combined_is_refused(wrong, rule):
    with pytest.raises(UserError, match=rule):
        Patches(**wrong)


def test_views_that_do_not_divide_are_refused_and_others_named():
    with pytest.raises(UserError, match=r"225 pixels does not divide into 2 x 2.* 224 or 226"):
        Patches().validate_views((224, 225))
    OFF.validate_views((225, 225))


def test_groups_of_batch_norm_that_would_mix_patches_are_refused():
    norm = nn.Sequential(BatchNorm(3, group=4))
    check_whole_groups(norm, 8)
    with pytest.raises(UserError, match="6 images, which is not a multiple of"):
        check_whole_groups(norm, 6)
    check_whole_groups(nn.Sequential(BatchNorm(3)), 7)


def test_a_backbone_without_stages_is_refused_where_they_are_needed():
    whole = nn.Flatten()
    Patches().validate_backbone(whole)
    Patches(how="sample").validate_backbone(whole)
    for patches in (
        Patches(how="encode_divide"),
        Patches(how="montage"),
        Patches(stage="stage1", pairs="adjacent"),
    ):
        with pytest.raises(UserError, match="needs a backbone with stages, and Flatten has none"):
            patches.validate_backbone(whole)


@pytest.mark.parametrize("name", ["byol", "nnclr", "simsiam"])
def test_only_fast_moco_combines_predictions(name):
    with pytest.raises(UserError, match="only fast_moco does that"):
        make(name, patches=Patches(stage="pred"))
    make("fast_moco", patches=Patches(stage="pred"))
