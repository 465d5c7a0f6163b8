from dataclasses import replace

import pytest
import torch

from selfsight.errors import UserError
from selfsight.evals import few_label_settings, fine_tune_settings, linear_probe_settings
from selfsight.evals.classifier_settings import ClassifierSettings, Regularization
from selfsight.evals.detection import DetectorSettings
from selfsight.evals.protocol_flags import apply_flags, apply_options
from selfsight.evals.protocols import PROTOCOLS, build_evaluator, describe_protocols, get_protocol
from selfsight.evals.stratified_splits import stratified
from selfsight.evals.train_classifier import ClassifierEvaluator
from selfsight.optim.lr_scaling import scaled_lr
from selfsight.options.eval_options import EvalOptions
from tests.evals.small_networks import Small, bright, labeled

DATA = labeled(bright(60), test=bright(30, seed=1))


@pytest.mark.parametrize("name", [n for n, p in PROTOCOLS.items() if p.data_kind == "labeled"])
def test_every_protocol_builds_and_gives_numbers_and_settings(name, tmp_path):
    per_class = 6 if name.startswith("few_labels") else None
    options = EvalOptions(epochs=1, batch_size=16, split_folder=tmp_path, per_class=per_class)
    made = build_evaluator(name, DATA, options)
    if isinstance(made, ClassifierEvaluator):  # two steps
        made = replace(
            made,
            data=made.data.with_subset(
                made.data.train_index[torch.arange(32) % len(made.data.train_index)]
            ),
        )
        assert made.training.epochs == 1
    found = made(Small())
    if isinstance(made, ClassifierEvaluator):  # too few steps to learn, but images are counted
        correct = found["accuracy"] * len(DATA.test)
        assert correct == pytest.approx(round(correct), abs=1e-4)
    else:
        assert found["map" if name.startswith(("svm", "retrieval")) else "accuracy"] == 1.0
    assert all(isinstance(value, int | float) for k, value in found.items() if k != "per_image")
    assert "seed" in made.settings() or name.startswith(("knn", "retrieval"))


def test_a_near_miss_is_offered():
    with pytest.raises(UserError, match=r'Did you mean "linear\.mocov3_vit"'):
        get_protocol("linear.mocov3_vits")
    with pytest.raises(UserError, match="Families: knn, retrieval, linear, few_labels, fine_tune"):
        get_protocol("zzz")


def test_every_protocol_names_its_source():
    for row in describe_protocols():
        assert "arXiv:" in row["source"] or row["source"].startswith("ours"), row["name"]
        assert row["settings"], row["name"]


# Peak rate of the head at the published batch: METHODS of the papers, in absolute numbers.
PEAKS = {
    "moco": 30,
    "jcl": 30,
    "jcl_imagenet100": 10,
    "simo": 30,
    "mocov3_resnet": 0.4,
    "mocov3_vit": 12,
    "simsiam": 1.6,
    "fast_moco_90": 0.8,
    "fast_moco_10": 1.6,
    "byol": 0.8,
    "msbreg": 0.8,
    "simclr": 1.6,
    "swav": 0.3,
    "barlow_twins": 0.3,
    "vicreg": 0.02,
}


def peak(training: ClassifierSettings) -> float:
    return scaled_lr(training.head.lr, training.head.scale, training.batch_size)


def test_published_linear_rates():
    assert {n: peak(t) for n, t in linear_probe_settings.PUBLISHED.items()} == pytest.approx(PEAKS)
    assert all(t.backbone is None for t in linear_probe_settings.PUBLISHED.values())


# Epochs, batch, decay, optimizer, where the rate falls by how much (none: a cosine).
LINEAR = {
    "moco": (100, 256, 0.0, "sgd", (60, 80), 0.1),
    "jcl": (100, 256, 0.0, "sgd", (60, 80), 0.1),
    "jcl_imagenet100": (100, 256, 0.0, "sgd", (60, 80), 0.1),
    "simo": (90, 256, 0.0, "sgd", (60, 80), 0.1),
    "mocov3_resnet": (90, 1024, 0.0, "sgd", (), None),
    "mocov3_vit": (90, 1024, 0.0, "sgd", (), None),
    "simsiam": (90, 4096, 0.0, "larc", (), None),
    "fast_moco_90": (90, 4096, 0.0, "fastmoco", (), None),
    "fast_moco_10": (10, 4096, 0.0, "fastmoco", (), None),
    "byol": (80, 1024, 0.0, "nesterov", (), None),
    "msbreg": (80, 1024, 0.0, "nesterov", (), None),
    "simclr": (90, 4096, 0.0, "nesterov", (), None),
    "swav": (100, 256, 1e-6, "sgd", (), None),
    "barlow_twins": (100, 256, 1e-6, "sgd", (), None),
    "vicreg": (100, 256, 1e-6, "sgd", (), None),
}
# Epochs, batch, rate of the head, of the backbone (none: frozen), optimizer, steps, factor.
FEW = {
    "fast_moco_1": (60, 256, (0.05, 0.5, 5, 50, 500), None, "nesterov", (36, 48), 0.2),
    "fast_moco_10": (20, 256, (0.05, 0.5, 5, 50, 500), 1e-6, "nesterov", (12, 16), 0.2),
    "msbreg_1": (50, 1024, (2.0,), None, "nesterov", (30, 40), 0.2),
    "msbreg_10": (50, 1024, (0.25,), 2.5e-4, "nesterov", (30, 40), 0.2),
    "swav_1": (20, 256, (5.0,), 0.02, "sgd", (12, 16), 0.2),
    "swav_10": (20, 256, (0.2,), 0.01, "sgd", (12, 16), 0.2),
    "barlow_twins_1": (20, 256, (0.5,), 0.005, "sgd", (), None),
    "barlow_twins_10": (20, 256, (0.5,), 0.005, "sgd", (), None),
    "vicreg_1": (20, 256, (0.08,), 0.03, "sgd", (), None),
    "vicreg_10": (20, 256, (0.1,), 0.01, "sgd", (), None),
    "simclr_1": (60, 1024, (0.16,), 0.16, "sgd", (), None),
    "simclr_10": (30, 1024, (0.16,), 0.16, "sgd", (), None),
}


def falls(training: ClassifierSettings) -> tuple[str, tuple[float, ...], float | None]:
    """Optimizer and schedule of the head."""
    head = training.head
    kind = head.variant if head.name == "lars" else "nesterov" if head.nesterov else head.name
    steps = tuple(round(m, 6) for m in head.schedule.milestones)
    assert (head.schedule.name == "step") == bool(steps)
    assert head.schedule.warmup_epochs == 0 and head.momentum == 0.9
    return kind, steps, head.schedule.gamma if steps else None


def test_published_linear_settings():
    found = {
        name: (t.epochs, t.batch_size, t.head.weight_decay, *falls(t))
        for name, t in linear_probe_settings.PUBLISHED.items()
    }
    assert found == LINEAR
    bicubic = {
        name for name, t in linear_probe_settings.PUBLISHED.items() if t.interpolation == "bicubic"
    }
    assert bicubic == {"fast_moco_90", "fast_moco_10"}


def test_published_settings_of_few_labels():
    found = {}
    bicubic = {
        n for n, (_, t) in few_label_settings.PUBLISHED.items() if t.interpolation == "bicubic"
    }
    assert bicubic == {"fast_moco_1", "fast_moco_10"}
    for name, (amount, t) in few_label_settings.PUBLISHED.items():
        assert amount.share == (0.01 if name.endswith("_1") else 0.1)
        assert t.head.weight_decay == 0
        under = t.backbone and scaled_lr(t.backbone.lr, t.backbone.scale, t.batch_size)
        found[name] = (t.epochs, t.batch_size, t.head_lrs or (peak(t),), under, *falls(t))
    assert found == FEW


def test_published_fine_tuning_lengths():
    found = {
        name: (t.epochs, t.batch_size, t.head.schedule.warmup_epochs, t.interpolation)
        for name, t in fine_tune_settings.PUBLISHED.items()
    }
    transfer = dict.fromkeys(("cifar10", "cifar100", "flowers102", "pets"), (100, 1024, 3))
    expected = {"mocov3_vit": (150, 1024, 5)} | transfer
    assert found == {name: (*numbers, "bicubic") for name, numbers in expected.items()}
    for t in fine_tune_settings.PUBLISHED.values():
        strong = t.regularization
        assert (strong.rand_augment, strong.rand_augment_std, strong.label_smoothing) == (
            9,
            0.5,
            0.1,
        )
        assert strong.ema_decay == 0.99996 and t.head == t.backbone and t.head.name == "adamw"


def test_published_fine_tuning_rates_and_their_ends():
    found = {name: peak(t) for name, t in fine_tune_settings.PUBLISHED.items()}
    transfer = dict.fromkeys(("cifar10", "cifar100", "flowers102", "pets"), 6e-4)
    assert found == pytest.approx({"mocov3_vit": 1e-3} | transfer)
    for training in fine_tune_settings.PUBLISHED.values():
        schedule, epochs = training.head.schedule, training.epochs
        assert schedule.lr(float(epochs), epochs, peak(training)) == pytest.approx(1e-5)
        assert schedule.lr(0.0, epochs, peak(training)) == pytest.approx(1e-6)


def test_the_transfer_sets_differ_as_published():
    strong = {n: t.regularization for n, t in fine_tune_settings.PUBLISHED.items()}
    decay = {n: t.head.weight_decay for n, t in fine_tune_settings.PUBLISHED.items()}
    assert decay == {
        "mocov3_vit": 0.05,
        "cifar10": 0.1,
        "cifar100": 0.1,
        "flowers102": 0.3,
        "pets": 0.1,
    }
    mixing = {
        n: (s.mixup, s.cutmix, s.random_erasing, s.drop_path, s.repeats) for n, s in strong.items()
    }
    assert mixing == {
        "mocov3_vit": (0.8, 1.0, 0.25, 0.1, 3),
        "cifar10": (0.8, 1.0, 0.0, 0.1, 1),
        "cifar100": (0.5, 1.0, 0.0, 0.1, 1),
        "flowers102": (0.0, 0.0, 0.25, 0.1, 1),
        "pets": (0.8, 0.0, 0.0, 0.0, 1),
    }


def test_other_epochs_keep_the_shares_of_warm_up_and_steps():
    short = linear_probe_settings.PUBLISHED["moco"].with_epochs(10)
    assert short.head.schedule.milestones == pytest.approx((6, 8))
    tuned = fine_tune_settings.PUBLISHED["cifar10"].with_epochs(50)
    assert tuned.head.schedule.warmup_epochs == tuned.backbone.schedule.warmup_epochs == 1.5


@pytest.mark.parametrize("published", [linear_probe_settings.MOCO, fine_tune_settings.VIT_B])
def test_one_epoch_has_the_whole_schedule(published):
    short, total = published.with_epochs(1).head.schedule, published.epochs
    assert published.with_epochs(2 * total).head.schedule.per_epoch
    for epoch in range(total):  # each of the published run is a part of the only one
        expected = published.head.schedule.lr(float(epoch), float(total), 1.0)
        found = short.lr((epoch + 1e-9) / total, 1.0, 1.0)
        assert found == pytest.approx(expected, rel=1e-6)


def test_flags_change_what_is_nested():
    words = "--head.weight-decay 3 --regularization.layer-decay 0.5 --set.head-lrs 0.1 1"
    options = EvalOptions(epochs=10, batch_size=8, settings=words.split())
    made = apply_options(fine_tune_settings.PUBLISHED["pets"], options)
    assert (made.epochs, made.batch_size, made.head.weight_decay) == (10, 8, 3.0)
    assert made.regularization.layer_decay == 0.5
    assert made.head_lrs == (0.1, 1.0)
    assert made.regularization.label_smoothing == 0.1
    assert not apply_flags(DetectorSettings(), ["--set.no-extra-norm"]).extra_norm
    with pytest.raises(UserError, match=r'flag --set\.epoch\. Did you mean "--set\.epochs"'):
        apply_flags(made, ["--set.epoch", "3"])


def test_one_learning_rate_replaces_those_to_select_from():
    published = few_label_settings.PUBLISHED["fast_moco_1"][1]
    assert published.head_lrs
    made = apply_options(published, EvalOptions(settings=["--head.lr=3"]))
    assert (made.head.lr, made.head_lrs) == (3.0, ())
    both = EvalOptions(settings=["--head.lr", "3", "--set.head-lrs", "1", "2"])
    with pytest.raises(UserError, match="Give one of them"):
        apply_options(published, both)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--head.lr -1", r"^head\.lr is -1"),
        ("--head.lr 0.1 --backbone.lr -1", r"^backbone\.lr is -1"),
        ("--backbone.lr 0.1 --head.schedule.gamma -1", r"^head\.schedule\.gamma is -1"),
        ("--backbone.schedule.warmup-epochs 20", r"^backbone\.schedule\.warmup_epochs is 20"),
    ],
)
def test_an_error_names_the_flag_of_the_optimizer(words, message):
    with pytest.raises(UserError, match=message):
        apply_flags(few_label_settings.PUBLISHED["swav_1"][1], words.split())


def test_settings_of_a_frozen_backbone_are_an_error():
    with pytest.raises(UserError, match=r"--backbone\.lr is of protocols that train the backbone"):
        apply_flags(linear_probe_settings.PUBLISHED["moco"], ["--backbone.lr=3"])
    with pytest.raises(UserError, match=r"layer_decay is 0\.5, but the backbone is frozen"):
        apply_flags(
            linear_probe_settings.PUBLISHED["moco"], ["--regularization.layer-decay", "0.5"]
        )


def test_few_labels_learn_from_the_few_and_score_on_all(tmp_path):
    four, alone = (EvalOptions(split_folder=tmp_path, per_class=n) for n in (4, 1))
    made = build_evaluator("few_labels.linear_10", DATA, four)
    assert len(made.data.train_index) == 12
    assert made(Small())["accuracy"] == 1.0
    found = build_evaluator("few_labels.linear_1", DATA, alone)(Small())
    assert found["accuracy"] > 0.9
    assert "held_out_accuracy" not in found  # no class can spare an image to choose by


@pytest.mark.parametrize("name", ["linear", "linear.sgd", "linear.moco", "few_labels.linear_10"])
def test_the_seed_is_that_of_the_options(name, tmp_path):
    options = EvalOptions(split_folder=tmp_path, seed=7)
    assert build_evaluator(name, DATA, options).seed == 7


def test_temperature_and_k_are_those_of_the_options():
    for name in ("knn", "knn.leave_one_out"):
        knn = build_evaluator(name, DATA, EvalOptions(k=(3, 5), temperature=0.5))
        assert (knn.ks, knn.temperature) == ((3, 5), 0.5)


def test_few_labels_are_training_images_of_the_split_that_the_seed_decides(tmp_path):
    split = stratified(DATA.train.labels, test_share=0.5)
    data, samples = labeled(DATA.train, split=split), []
    for seed in (0, 1):
        options = EvalOptions(split_folder=tmp_path, per_class=3, seed=seed)
        found = build_evaluator("few_labels.linear_1", data, options).data
        samples.append(set(found.train_index.tolist()))
        assert len(samples[-1]) == 9 and samples[-1] <= set(split.train.tolist())
        assert found.test_index.tolist() == split.test.tolist()
    assert samples[0] != samples[1]


def test_leave_one_out_has_the_training_images_of_a_split_only():
    split = stratified(DATA.train.labels, test_share=0.5)
    for name in ("knn.leave_one_out", "retrieval.leave_one_out"):
        data = build_evaluator(name, labeled(DATA.train, split=split), EvalOptions()).data
        assert not data.has_test_images and data.num_candidates == len(split.train) - 1
        assert data.train_index.tolist() == data.test_index.tolist() == split.train.tolist()


@pytest.mark.parametrize(
    "wrong",
    [
        {"label_smoothing": 1.0},
        {"mixup": -1.0},
        {"ema_decay": 0.0},
        {"repeats": 0},
        {"rand_augment": 11.0},
    ],
)
def test_out_of_range_settings_are_errors(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        Regularization(**wrong)
