from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from selfsight.errors import UserError
from selfsight.evals import train_classifier
from selfsight.evals.classifier_settings import (
    COSINE,
    ClassifierSettings,
    Regularization,
    sgd,
    step_schedule,
)
from selfsight.evals.drop_path import DropPath
from selfsight.evals.extract_features import augmented_batches
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.train_classifier import ClassifierEvaluator
from selfsight.optim import Optim
from tests.evals.small_networks import TRANSFORM, Means, Small, bright, from_pixels, labeled

HEAD = ClassifierSettings(source="here", epochs=4, batch_size=20, head=sgd(1.0, COSINE))
WHOLE = replace(HEAD, backbone=sgd(0.1, COSINE), head=sgd(0.1, COSINE))
STRONG = Regularization(
    rand_augment=9.0,
    label_smoothing=0.1,
    mixup=0.8,
    cutmix=1.0,
    random_erasing=0.5,
    drop_path=0.3,
    ema_decay=0.9,
    repeats=2,
    layer_decay=0.7,
)


def trained(training=HEAD, n=60, classes=3, **settings):
    data = labeled(bright(n, classes=classes), test=bright(30, classes=classes, seed=1))
    return ClassifierEvaluator(data=data, training=training, **settings)


def test_all_regularization_together_still_learns():
    found = trained(replace(WHOLE, epochs=7, regularization=STRONG))(Small())
    assert found["accuracy"] >= 0.9
    assert found["ema_accuracy"] >= 0.9


def weights(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("training", [HEAD, WHOLE], ids=["frozen", "whole"])
def test_what_can_be_told_apart_is(training):
    assert trained(training)(Small())["accuracy"] == 1.0


@pytest.mark.parametrize("training", [HEAD, WHOLE], ids=["frozen", "whole"])
def test_labels_that_say_nothing_give_chance(training):
    g = torch.Generator().manual_seed(0)

    def noise(n):
        pixels = torch.randint(0, 256, (n, 3, 8, 8), generator=g, dtype=torch.uint8)
        return from_pixels(pixels, torch.randint(0, 3, (n,), generator=g))

    it = ClassifierEvaluator(
        data=labeled(noise(60), test=noise(600)), training=replace(training, epochs=5)
    )
    assert it(Small())["accuracy"] == pytest.approx(1 / 3, abs=0.08)


@pytest.mark.parametrize("strong", [Regularization(), STRONG], ids=["plain", "strong"])
@pytest.mark.parametrize("training", [HEAD, WHOLE], ids=["frozen", "whole"])
def test_the_backbone_that_was_given_never_changes(training, strong):
    backbone = Small().train()
    before = weights(backbone)
    if training.backbone is None:  # these regularize a trained backbone only
        strong = replace(strong, drop_path=0.0, layer_decay=None)
    trained(replace(training, epochs=1, regularization=strong))(backbone)
    assert backbone.training
    assert not any(isinstance(m, DropPath) for m in backbone.modules())
    for name, value in backbone.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.requires_grad for p in backbone.parameters())


def test_a_frozen_backbone_is_in_evaluation_mode():
    class Tells(Means):
        def forward(self, x):
            modes.append(self.norm.training)
            return super().forward(x)

    modes = []
    trained(replace(HEAD, epochs=1))(Tells())
    assert modes and not any(modes)


def test_frozen_training_is_torchs_loop():
    """The head alone, step for step, on the same views."""
    it = trained(replace(HEAD, epochs=2, head=sgd(0.5, step_schedule(1), weight_decay=1e-3)))
    model, _ = it.fit(Means(), it.data, (0.5,))
    backbone, head = Means().eval(), nn.Linear(3, 3)
    with torch.no_grad():
        head.weight.copy_(it.fit(Means(), it.data, (1e-12,))[0].heads[0].weight)
        head.bias.zero_()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-3)
    rows = [it._index(it.data, step) for step in range(6)]
    drawn = augmented_batches(
        it.data.train, rows, it.training.view(TRANSFORM), seed=0, device=torch.device("cpu")
    )
    for step, (x, index, _) in enumerate(drawn):
        optimizer.param_groups[0]["lr"] = 0.5 if step < 3 else 0.05
        loss = nn.functional.cross_entropy(head(backbone(x).detach()), it.data.train.labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(model.heads[0].weight, head.weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.heads[0].bias, head.bias, rtol=1e-5, atol=1e-6)


def test_an_epoch_shows_every_image_once():
    it = trained(replace(HEAD, epochs=2))
    for epoch in (0, 1):
        (parts,) = zip(*(it._index(it.data, 3 * epoch + step) for step in range(3)), strict=True)
        assert {number for number, _ in parts} == {epoch}
        assert torch.cat([index for _, index in parts]).sort().values.tolist() == list(range(60))


def test_training_crops_are_those_of_the_settings_without_color_operations():
    view = replace(HEAD, crop_scale=(0.5, 0.9), interpolation="bicubic").view(TRANSFORM)
    assert (view.size, view.scale, view.interpolation) == (TRANSFORM.size, (0.5, 0.9), "bicubic")
    assert (view.mean, view.std, view.flip) == (TRANSFORM.mean, TRANSFORM.std, 0.5)
    assert view.jitter_p == view.gray == view.blur == 0


def test_each_epoch_has_an_order_of_its_own_that_the_seed_decides():
    def order(epoch, seed):
        it = replace(trained(replace(HEAD, epochs=2)), seed=seed)
        steps = [3 * epoch + step for step in range(3)]
        return torch.cat([part for step in steps for _, part in it._index(it.data, step)]).tolist()

    assert order(0, 0) != order(1, 0) and order(0, 0) != order(0, 1)


def test_first_weights_of_a_head_depend_on_the_seed_and_have_the_given_spread():
    heads = []
    for seed in (0, 1):
        it = replace(trained(replace(HEAD, head_init_std=0.2)), seed=seed)
        heads.append(it._build_head(500, 40, torch.device("cpu")))
    for head in heads:
        assert head.weight.std().item() == pytest.approx(0.2, rel=0.03)
        assert not head.bias.any()
    assert not torch.equal(heads[0].weight, heads[1].weight)


def test_a_repeated_image_stands_in_one_batch_with_views_of_its_own():
    it = trained(replace(HEAD, regularization=Regularization(repeats=2)))
    first, second = it._index(it.data, 0)
    assert (first[0], second[0]) == (0, 1)
    assert first[1].tolist() == second[1].tolist()
    assert len(first[1]) == 10
    seen = torch.cat([part for step in range(3) for _, part in it._index(it.data, step)])
    assert len(seen.unique()) == 30  # half the images in an epoch of the same length


def test_heads_of_several_rates_are_each_alone():
    it = trained(replace(HEAD, epochs=2))
    together, _ = it.fit(Small(), it.data, (0.01, 1.0))
    for number, rate in enumerate((0.01, 1.0)):
        alone, _ = it.fit(Small(), it.data, (rate,))
        torch.testing.assert_close(together.heads[number].weight, alone.heads[0].weight)


@pytest.mark.parametrize("training", [HEAD, WHOLE], ids=["frozen", "whole"])
def test_a_held_out_tenth_chooses_the_rate(training):
    found = trained(replace(training, head_lrs=(1e-9, 0.5)))(Small())
    assert found["lr"] == 0.5
    assert found["accuracy"] == 1.0
    assert "held_out_accuracy" in found


def test_the_rate_is_selected_on_images_that_its_training_does_not_have(monkeypatch):
    fit, test_features = ClassifierEvaluator.fit, LabeledData.test_features
    trained_on, scored_on = [], []

    def fit_and_tell(it, backbone, data, lrs):
        trained_on.append(data.train_index)
        return fit(it, backbone, data, lrs)

    def score_and_tell(data, network):
        scored_on.append((data.test, data.test_index, data.transform.interpolation))
        return test_features(data, network)

    monkeypatch.setattr(ClassifierEvaluator, "fit", fit_and_tell)
    monkeypatch.setattr(LabeledData, "test_features", score_and_tell)
    it = trained(replace(HEAD, epochs=1, head_lrs=(1e-9, 0.5), interpolation="bicubic"))
    it(Means())
    (selecting, final), ((no_test, held_out, kind), (test, *_)) = trained_on, scored_on
    assert (len(selecting), len(held_out)) == (54, 6)
    assert torch.cat([selecting, held_out]).sort().values.tolist() == list(range(60))
    assert final.tolist() == list(range(60))
    assert no_test is None and test is it.data.test and kind == "bicubic"


def test_too_few_images_for_every_process_choose_no_rate(monkeypatch):
    it = trained(replace(HEAD, head_lrs=(1e-9, 0.5, 1.0), batch_size=8), n=4, classes=2)
    monkeypatch.setattr(train_classifier.dist, "world_size", lambda: 4)
    assert it._select_lr(Small(), (1e-9, 0.5, 1.0)) == ((0.5,), {"lr": 0.5})


def test_separate_rates_move_head_and_backbone_apart():
    still = replace(WHOLE, epochs=1, backbone=sgd(1e-30, COSINE))
    it = trained(still)
    model, _ = it.fit(Small(), it.data, (0.1,))
    first = Small()
    torch.testing.assert_close(model.backbone.conv.weight, first.conv.weight, rtol=0, atol=1e-12)
    assert not torch.equal(model.backbone.norm.running_mean, first.norm.running_mean)
    moving, _ = trained(replace(WHOLE, epochs=1)).fit(Small(), it.data, (0.1,))
    assert (moving.backbone.conv.weight - first.conv.weight).abs().max() > 1e-4


def test_layer_decay_slows_what_is_near_the_pixels():
    plain = replace(WHOLE, epochs=1)
    decayed = replace(plain, regularization=Regularization(layer_decay=0.1))
    moved = []
    for training in (plain, decayed):
        it = trained(training)
        model, _ = it.fit(Small(), it.data, (0.1,))
        moved.append((model.backbone.conv.weight - Small().conv.weight).norm().item())
    assert moved[1] < 0.3 * moved[0]


def test_layer_decay_begins_at_the_head():
    """As in timm: the head has its rate, the last layer the first power of the decay."""
    it = trained(replace(WHOLE, regularization=Regularization(layer_decay=0.5)))
    network = Small()
    layers = {name: int(name.startswith("norm")) for name, _ in network.named_parameters()}
    found = it._backbone_optimizers(network, layers)
    lr = it.training.backbone.lr
    rates = [(config.lr, len(o.param_groups[0]["params"])) for config, o in found]
    assert rates == [(lr * 0.25, 2), (lr * 0.5, 2)]  # convolution and norm
    (config, _), *others = trained(WHOLE)._backbone_optimizers(network, {})
    assert config.lr == lr and not others


def test_the_moving_average_is_scored_beside():
    found = trained(replace(WHOLE, regularization=Regularization(ema_decay=1.0)))(Small())
    assert found["accuracy"] == 1.0
    assert found["ema_accuracy"] < 0.9  # it never moved from the first weights


def test_the_moving_average_is_timm_s(monkeypatch):
    from timm.utils import ModelEmaV3  # two processes import this file too, and need no timm

    theirs = []

    class Both(AveragedModel):
        def __init__(self, model, **settings):
            super().__init__(model, **settings)
            theirs.append(ModelEmaV3(model, decay=0.9, exclude_buffers=True))

        def update_parameters(self, model):
            super().update_parameters(model)
            theirs[0].update(model)

    monkeypatch.setattr(train_classifier, "AveragedModel", Both)
    it = trained(replace(WHOLE, epochs=2, regularization=Regularization(ema_decay=0.9)))
    ours = it.fit(Small(), it.data, (0.1,))[1].state_dict()
    assert all(torch.equal(v, ours[k]) for k, v in theirs[0].module.state_dict().items())


def test_top5_where_there_are_more_classes():
    it = trained(replace(HEAD, epochs=1), classes=8)
    found = it(Small())
    model, _ = it.fit(Small(), it.data, (HEAD.head.lr,))
    test = it.data.test_features(model.backbone)
    rows = zip(model.logits(test.h)[0].tolist(), test.y.tolist(), strict=True)
    ranks = [sorted(row, reverse=True).index(row[y]) for row, y in rows]
    assert found["accuracy"] == pytest.approx(sum(r == 0 for r in ranks) / 30)
    assert found["top5"] == pytest.approx(sum(r < 5 for r in ranks) / 30)
    assert found["accuracy"] < found["top5"] < 1


def test_a_batch_is_no_larger_than_the_images_and_says_so():
    it = trained(replace(HEAD, epochs=10, batch_size=4096))
    assert it.settings()["batch_size"] == 60
    assert "4096" in it.settings()["note"]
    assert it(Small())["accuracy"] >= 0.9
    assert "note" not in trained().settings()


def test_what_is_scored_is_resized_as_what_was_learned_from():
    """DeiT and Fast-MoCo take bicubic images for both."""
    seen = []
    network = Small()
    network.register_forward_pre_hook(lambda net, x: None if net.training else seen.append(x[0]))
    it = trained(replace(WHOLE, epochs=1, interpolation="bicubic"))
    transform = replace(it.data.transform, size=6, resize=6)
    replace(it, data=replace(it.data, transform=transform))(network)
    expected = []
    for kind in ("bicubic", "bilinear"):
        view = replace(it.data, transform=replace(transform, interpolation=kind))
        view.test_features(network)
        expected.append(seen.pop())
    assert torch.equal(seen[-1], expected[0]) and not torch.equal(seen[-1], expected[1])


def test_the_error_for_a_batch_of_one_says_to_raise_batch_size():
    with pytest.raises(
        UserError, match=r"^batch_size is 1, but training needs a batch of 2\. Raise"
    ):
        trained(replace(HEAD, batch_size=1))


def test_too_few_images_for_a_batch_are_an_error():
    one = trained().data.with_subset(torch.tensor([3]))
    with pytest.raises(UserError, match=r"images is 1, but training needs a batch of 2\. Add"):
        ClassifierEvaluator(data=one, training=HEAD)
    with pytest.raises(UserError, match="test set"):
        ClassifierEvaluator(data=labeled(bright()), training=HEAD)


def state(training):
    """What a few steps on this process's share lead to."""
    torch.manual_seed(0)
    it = trained(training, n=42)
    it = replace(it, data=replace(it.data, distributed=True))
    model, average = it.fit(Small().double(), it.data, (training.head.lr,))
    with mock.patch.object(ClassifierEvaluator, "fit", return_value=(model, average)):
        scores = it(Small().double())
    scores["per_image"] = scores["per_image"].predictions.tolist()
    return weights(model), None if average is None else weights(average), scores


@pytest.mark.parametrize(
    "training",
    [
        replace(HEAD, epochs=1),
        replace(WHOLE, epochs=2),
        replace(WHOLE, epochs=2, regularization=STRONG),
        replace(HEAD, epochs=1, head=Optim(name="lars", variant="larc", lr=0.1)),
        replace(WHOLE, epochs=1, batch_size=15),
        replace(WHOLE, epochs=2, batch_size=14, regularization=STRONG),
    ],
    ids=["frozen", "whole", "strong", "larc", "odd", "odd pairs"],
)
def test_two_processes_equal_one(two_processes, training):
    expected = state(training)
    for found in two_processes(state, training):
        torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-6)
        assert found[2] == expected[2]
