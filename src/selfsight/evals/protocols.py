"""Every evaluation protocol by name, with its source and settings: `family` or `family.variant`.

The published settings of a family are in its own module; `PROTOCOLS` collects them all.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from torch import nn

from selfsight import dist
from selfsight.data import ImageStore
from selfsight.errors import UserError, suggest
from selfsight.evals import (
    few_label_settings,
    fine_tune_settings,
    linear_probe_settings,
    svm,
    transfer_settings,
)
from selfsight.evals.classifier_settings import ClassifierSettings
from selfsight.evals.detection import (
    DetectionDataset,
    DetectionEvaluator,
    DetectorSettings,
    detector_settings,
)
from selfsight.evals.feature_analysis import AnalysisSettings, FeatureAnalysis
from selfsight.evals.knn import KNN
from selfsight.evals.label_subsets import LabelAmount, describe_small_classes, load_or_sample_few
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.linear_lbfgs import LinearProbe
from selfsight.evals.linear_sgd import LinearSGDProbe, SGDGrid
from selfsight.evals.multilabel_data import MultilabelData
from selfsight.evals.prediction_scores import Scores
from selfsight.evals.protocol_flags import FlagSettings, apply_flags, apply_options
from selfsight.evals.retrieval import Retrieval
from selfsight.evals.svm import SVM
from selfsight.evals.train_classifier import ClassifierEvaluator
from selfsight.options.eval_options import EvalOptions
from selfsight.terminal.console import format_setting
from selfsight.views import View

DataKind = Literal["labeled", "boxes", "images"]


@runtime_checkable
class Evaluator(Protocol):
    """An evaluation: call it with a backbone to get numbers."""

    def __call__(self, backbone: nn.Module, /) -> Scores:
        """Return the numbers for a backbone."""

    def settings(self) -> dict[str, Any]:
        """The settings that decided the numbers, for the result file."""


class ProtocolSpec(NamedTuple):
    """A protocol before it has data.

    `build(data, options)` takes LabeledData if `data_kind` is "labeled", the DetectionDatasets to
    train and test on if it is "boxes", and (images, views) if it is "images".
    """

    source: str
    build: Callable[[Any, EvalOptions], Evaluator]
    settings: Any = None
    data_kind: DataKind = "labeled"

    @property
    def is_frozen(self) -> bool:
        """Whether it evaluates features of labeled images, and does not train the backbone."""
        return self.data_kind == "labeled" and getattr(self.settings, "backbone", None) is None

    @property
    def accepts_flags(self) -> bool:
        """Whether flags such as --head.lr change its settings."""
        return isinstance(self.settings, FlagSettings)

    @property
    def augments(self) -> bool:
        """Whether it trains on random crops."""
        return isinstance(self.settings, ClassifierSettings)

    @property
    def has_epochs(self) -> bool:
        """Whether it trains for a number of epochs."""
        return isinstance(self.settings, ClassifierSettings | SGDGrid)


def requested_amount(options: EvalOptions) -> LabelAmount | None:
    """Read the amount of labels that the options ask for, if they name one."""
    if options.share is None and options.per_class is None and options.split_file is None:
        return None
    file = None if options.split_file is None else Path(options.split_file)
    return LabelAmount(share=options.share, per_class=options.per_class, file=file)


def build_knn(data: LabeledData, options: EvalOptions) -> KNN:
    """kNN with training images as the bank, scored on the test images."""
    return KNN(data=data, ks=options.neighbor_counts, temperature=options.temperature)


def leave_one_out(data: LabeledData) -> LabeledData:
    """The training images alone, each of which is scored by all the others."""
    return replace(data, test=None, split=None, subset=data.train_index)


def build_leave_one_out_knn(data: LabeledData, options: EvalOptions) -> KNN:
    """kNN that classifies each training image by all the others, without test images."""
    return build_knn(leave_one_out(data), options)


def build_retrieval(data: LabeledData, options: EvalOptions) -> Retrieval:
    """Ranking of the training images for each test image."""
    return Retrieval(data=data, ks=tuple(sorted({1, *options.neighbor_counts})))


def build_leave_one_out_retrieval(data: LabeledData, options: EvalOptions) -> Retrieval:
    """Ranking of all the others for each training image, without test images."""
    return build_retrieval(leave_one_out(data), options)


def build_linear(data: LabeledData, options: EvalOptions) -> LinearProbe:
    """The linear probe that is solved by L-BFGS."""
    return LinearProbe(data=data, seed=options.seed)


def build_linear_sgd(data: LabeledData, options: EvalOptions) -> LinearSGDProbe:
    """The linear probe that is trained by SGD."""
    given = {"epochs": options.epochs, "batch_size": options.batch_size}
    settings: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    grid = SGDGrid(**settings)
    return LinearSGDProbe(data=data, grid=apply_flags(grid, options.settings), seed=options.seed)


def build_classifier(
    training: ClassifierSettings, data: LabeledData, options: EvalOptions
) -> ClassifierEvaluator:
    """A classifier trained on augmented images."""
    training = apply_options(training, options)
    return ClassifierEvaluator(data=data, training=training, seed=options.seed)


def build_few_labels(
    amount: LabelAmount,
    build: Callable[[LabeledData, EvalOptions], Evaluator],
    data: LabeledData,
    options: EvalOptions,
) -> Evaluator:
    """Another protocol with few labels, which are sampled once and saved in a file."""
    amount = requested_amount(options) or amount
    folder = options.split_folder or Path("splits")
    subset = load_or_sample_few(
        folder, data.train, amount, candidates=data.train_index, seed=options.seed
    )
    name = amount.description if amount.share is None else f"{amount.description} of all"
    notes = describe_small_classes(data.labels()[0], amount, data.class_names)
    return build(data.with_subset(subset, name, notes), options)


def build_svm(name: str, data: LabeledData | MultilabelData, options: EvalOptions) -> SVM:
    """A linear SVM for each class."""
    if isinstance(data, MultilabelData):
        return SVM(data=data, seed=options.seed, progress=data.progress)
    return svm.build_published_svm(name, data, seed=options.seed)


def build_detection(
    detector: DetectorSettings,
    data: tuple[DetectionDataset, DetectionDataset],
    options: EvalOptions,
) -> DetectionEvaluator:
    """A detector that is trained from the backbone."""
    if options.iterations is not None:
        detector = detector_settings.with_iterations(detector, options.iterations)
    if options.batch_size is not None:
        detector = replace(detector, batch_size=options.batch_size)
    detector = apply_flags(detector, options.settings)
    train, test = data
    return DetectionEvaluator(
        train=train, test=test, detector=detector, seed=options.seed, progress=True
    )


def build_analysis(
    data: tuple[ImageStore, Sequence[View]], options: EvalOptions
) -> FeatureAnalysis:
    """Statistics of the features, without labels."""
    images, views = data
    distributed = dist.world_size() > 1
    return FeatureAnalysis(
        images=images,
        views=views,
        analysis=apply_flags(AnalysisSettings(), options.settings),
        seed=options.seed,
        progress=True,
        distributed=distributed,
    )


# Fields of evaluators that the list of protocols does not print.
NOT_LISTED = {
    *("data", "images", "views", "seed", "batch_size"),
    *("autocast", "progress", "distributed", "workers"),
}
DETECTION_SOURCES = {  # by a part of the name
    "msbreg": "MSBReg (arXiv:2207.03552), supplement",
    "simo": "SiMo, with EqCo (arXiv:2010.01929), appendix B.5",
    "fast_moco": "Fast-MoCo (arXiv:2207.08220), supplement",
    "small": "ours, for some hundred images",
    "": "MoCo (arXiv:1911.05722): facebookresearch/moco, detection/",
}


LINEAR_SOURCE = "ours: L-BFGS on standardized features; a held-out tenth selects the weight decay"

RETRIEVAL_SOURCE = "ours: mAP of the ranking by cosine similarity, the same class is relevant"
PROTOCOLS: dict[str, ProtocolSpec] = {
    "knn": ProtocolSpec("InstDisc (arXiv:1805.01978), section 3.4", build_knn, KNN),
    "knn.leave_one_out": ProtocolSpec(
        "InstDisc (arXiv:1805.01978); among the training images", build_leave_one_out_knn, KNN
    ),
    "retrieval": ProtocolSpec(RETRIEVAL_SOURCE, build_retrieval, Retrieval),
    "retrieval.leave_one_out": ProtocolSpec(
        f"{RETRIEVAL_SOURCE}; among the training images", build_leave_one_out_retrieval, Retrieval
    ),
    "linear": ProtocolSpec(LINEAR_SOURCE, build_linear, LinearProbe),
    "linear.sgd": ProtocolSpec(
        "ours: SGD on standardized features; a held-out tenth selects lr and decay",
        build_linear_sgd,
        SGDGrid(),
    ),
    **{
        f"linear.{name}": ProtocolSpec(
            training.source, partial(build_classifier, training), training
        )
        for name, training in (
            linear_probe_settings.PUBLISHED | transfer_settings.PUBLISHED
        ).items()
    },
    **{
        f"few_labels.{name}": ProtocolSpec(
            LINEAR_SOURCE, partial(build_few_labels, amount, build_linear), amount
        )
        for name, amount in few_label_settings.SOLVED.items()
    },
    **{
        f"few_labels.{name}": ProtocolSpec(
            training.source,
            partial(build_few_labels, amount, partial(build_classifier, training)),
            training,
        )
        for name, (amount, training) in few_label_settings.PUBLISHED.items()
    },
    **{
        f"fine_tune.{name}": ProtocolSpec(
            training.source, partial(build_classifier, training), training
        )
        for name, training in fine_tune_settings.PUBLISHED.items()
    },
    **{
        name: ProtocolSpec(source, partial(build_svm, name), SVM)
        for name, (source, _) in svm.PUBLISHED.items()
    },
    **{
        f"detection.{name}": ProtocolSpec(
            next(source for part, source in DETECTION_SOURCES.items() if part in name),
            partial(build_detection, detector),
            detector,
            "boxes",
        )
        for name, detector in detector_settings.PUBLISHED.items()
    },
    "analysis": ProtocolSpec(
        "RankMe (arXiv:2210.02885), LiDAR (arXiv:2312.04000), EqCo, JCL: see docs/analysis.md",
        build_analysis,
        AnalysisSettings(),
        "images",
    ),
}


def get_protocol(name: str) -> ProtocolSpec:
    """Look up a protocol; the error suggests the nearest name."""
    if name not in PROTOCOLS:
        families = ", ".join(dict.fromkeys(n.split(".")[0] for n in PROTOCOLS))
        raise UserError(
            f'There is no protocol "{name}".{suggest(name, PROTOCOLS)} Families: {families}; '
            "`selfsight evaluate --protocols` lists all."
        )
    return PROTOCOLS[name]


def build_evaluator(name: str, data: Any, options: EvalOptions) -> Evaluator:
    """Build the evaluator of a protocol on data of its `data_kind`."""
    return get_protocol(name).build(data, options)


def describe_protocols() -> list[dict[str, str]]:
    """Name, summary of settings, and source of each protocol."""
    return [
        {"name": name, "settings": summarize(spec.settings), "source": spec.source}
        for name, spec in PROTOCOLS.items()
    ]


def summarize(settings: Any) -> str:
    """The settings that a reader compares, in one line."""
    if isinstance(settings, LabelAmount):
        return f"{settings.description} of the labels"
    if isinstance(settings, ClassifierSettings):
        return _summarize_classifier(settings)
    if isinstance(settings, DetectorSettings):
        model = ("Mask" if settings.masks else "Faster") + f" R-CNN, {settings.neck.upper()}"
        lr = f"{settings.lr:g}"
        if settings.backbone_lr is not None:
            lr += f", backbone lr {settings.backbone_lr:g}"
        length = f"{settings.iterations} iterations, batch {settings.batch_size}"
        return f"{model}, {length}, lr {lr}"
    if is_dataclass(settings):
        listed = [f for f in fields(settings) if f.name not in NOT_LISTED]
        return ", ".join(f"{f.name.replace('_', ' ')} {format_setting(f.default)}" for f in listed)
    return ""


def _summarize_classifier(training: ClassifierSettings) -> str:
    def lr(optim: Any) -> str:
        scale = {"linear": " x batch/256", "sqrt": " x sqrt(batch)", "none": ""}[optim.scale]
        return f"{optim.lr:g}{scale}"

    head = training.head
    optimizer = head.name + (f" ({head.variant})" if head.name == "lars" else "")
    head_lrs = ", ".join(f"{r:g}" for r in training.head_lrs)
    backbone = "frozen" if training.backbone is None else f"lr {lr(training.backbone)}"
    steps = [f"{m / training.epochs:.0%}" for m in head.schedule.milestones]
    schedule = f"x{head.schedule.gamma:g} at {', '.join(steps)}" if steps else head.schedule.name
    return (
        f"{training.epochs} epochs, batch {training.batch_size}, {optimizer}, head lr "
        f"{f'one of {head_lrs}' if head_lrs else lr(head)}, backbone {backbone}, {schedule}, "
        f"weight decay {format_setting(head.weight_decay)}"
    )
