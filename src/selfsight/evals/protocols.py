"""Every evaluation by name: `family` or `family.variant`, whose it is, and how it is made.

Each family keeps its settings in a dict of its own; here they are put together. A protocol is
called with a backbone and gives numbers; `settings()` says what decided them.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import tyro
from torch import nn

from selfsight import dist
from selfsight.data import ImageStore
from selfsight.errors import UserError, suggest
from selfsight.evals import few_labels, fine_tune, linear_augmented, svm, transfer
from selfsight.evals.classifier import ClassifierEvaluator
from selfsight.evals.classifier_settings import ClassifierSettings
from selfsight.evals.detection import (
    DetectionDataset,
    DetectionEvaluator,
    DetectorSettings,
    detector_settings,
)
from selfsight.evals.feature_analysis import FeatureAnalysis
from selfsight.evals.few_labels import LabelAmount, load_or_sample_few
from selfsight.evals.knn import KNN
from selfsight.evals.labeled_data import LabeledData
from selfsight.evals.linear import LinearProbe
from selfsight.evals.linear_sgd import LinearSGDProbe, SGDGrid
from selfsight.evals.multilabel import MultilabelData
from selfsight.evals.svm import SVM
from selfsight.options import EvalOptions
from selfsight.views import View

AnySettings = TypeVar("AnySettings", ClassifierSettings, DetectorSettings, SGDGrid)


DataKind = Literal["labeled", "boxes", "images"]


@runtime_checkable
class Evaluator(Protocol):
    """What every protocol is: called with a backbone it gives numbers."""

    def __call__(self, backbone: nn.Module, /) -> dict[str, float]:
        """The numbers for a backbone."""

    def settings(self) -> dict[str, Any]:
        """What decided the numbers, for the result file."""


class ProtocolSpec(NamedTuple):
    """A protocol before it has data.

    `make` takes (data, options), where data are Labeled; a pair of Objects for "boxes"; for
    "images" a pair of Images and the views that are drawn of them.
    """

    source: str
    make: Callable[[Any, EvalOptions], Evaluator]
    setting: Any = None
    opens: DataKind = "labeled"

    @property
    def flags(self) -> bool:
        """Whether it has settings that flags change."""
        return isinstance(self.setting, ClassifierSettings | DetectorSettings | SGDGrid)

    @property
    def epochs(self) -> bool:
        """Whether it trains for a number of epochs."""
        return isinstance(self.setting, ClassifierSettings | SGDGrid)


def requested_amount(options: EvalOptions) -> LabelAmount | None:
    """Read the amount of labels that the options ask for, if they name one."""
    if options.share is None and options.per_class is None and options.split_file is None:
        return None
    file = None if options.split_file is None else Path(options.split_file)
    return LabelAmount(share=options.share, per_class=options.per_class, file=file)


def knn(data: LabeledData, options: EvalOptions) -> KNN:
    """Nearest neighbors on the evaluation view."""
    return KNN(data=data, ks=options.neighbor_counts, temperature=options.temperature)


def knn_alone(data: LabeledData, options: EvalOptions) -> KNN:
    """Each image that may be learned from by all the others; test images are left aside."""
    return knn(replace(data, test=None, split=None, few=data.learned), options)


def solved(data: LabeledData, options: EvalOptions) -> LinearProbe:
    """The solved linear probe."""
    return LinearProbe(data=data, seed=options.seed)


def swept(data: LabeledData, options: EvalOptions) -> LinearSGDProbe:
    """The linear probe by SGD, all rates and decays at once."""
    given = {"epochs": options.epochs, "batch_size": options.batch_size}
    settings: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    grid = SGDGrid(**settings)
    return LinearSGDProbe(data=data, grid=_flagged(grid, options.settings), seed=options.seed)


def trained(
    training: ClassifierSettings, data: LabeledData, options: EvalOptions
) -> ClassifierEvaluator:
    """A classifier trained on augmented images."""
    return ClassifierEvaluator(data=data, training=changed(training, options), seed=options.seed)


def few(
    amount: LabelAmount,
    make: Callable[[LabeledData, EvalOptions], Evaluator],
    data: LabeledData,
    options: EvalOptions,
) -> Evaluator:
    """The same with few labels, drawn once and kept."""
    amount = requested_amount(options) or amount
    folder = options.split_folder or Path("splits")
    chosen = load_or_sample_few(folder, data.train, amount, among=data.learned, seed=options.seed)
    words = amount.words if amount.share is None else f"{amount.words} of all"
    return make(data.only(chosen, words), options)


def machines(name: str, data: LabeledData | MultilabelData, options: EvalOptions) -> SVM:
    """A linear SVM for each class."""
    if isinstance(data, MultilabelData):
        return SVM(data=data, seed=options.seed, progress=data.progress)
    return svm.published(name, data, seed=options.seed)


def detection(
    setting: DetectorSettings, data: tuple[DetectionDataset, DetectionDataset], options: EvalOptions
) -> DetectionEvaluator:
    """A detector trained from the backbone."""
    if options.iterations is not None:
        setting = detector_settings.shortened(setting, options.iterations)
    if options.batch_size is not None:
        setting = replace(setting, batch_size=options.batch_size)
    setting = _flagged(setting, options.settings)
    train, test = data
    return DetectionEvaluator(
        train=train, test=test, setting=setting, seed=options.seed, progress=True
    )


def analysis(data: tuple[ImageStore, Sequence[View]], options: EvalOptions) -> FeatureAnalysis:
    """What the features look like, without labels."""
    images, views = data
    shared = dist.world_size() > 1
    return FeatureAnalysis(
        images=images, views=views, seed=options.seed, progress=True, shared=shared
    )


# Of evaluators' fields, those that are no settings of the protocol.
UNTOLD = {
    *("data", "images", "views", "seed", "batch_size"),
    *("autocast", "progress", "shared", "workers"),
}
DETECTORS = {
    "msbreg": "MSBReg (arXiv:2207.03552), supplement",
    "simo": "SiMo, with EqCo (arXiv:2010.01929), appendix B.5",
    "fast_moco": "Fast-MoCo (arXiv:2207.08220), supplement",
    "small": "ours, for some hundred images",
    "": "MoCo (arXiv:1911.05722): facebookresearch/moco, detection/",
}


def _detected(name: str) -> str:
    return next(source for word, source in DETECTORS.items() if word in name)


OURS = "ours: L-BFGS on standardized features; a held-out tenth chooses the decay"

PROTOCOLS: dict[str, ProtocolSpec] = {
    "knn": ProtocolSpec("InstDisc (arXiv:1805.01978), section 3.4", knn, KNN),
    "knn.leave_one_out": ProtocolSpec(
        "InstDisc (arXiv:1805.01978); among the training images alone", knn_alone, KNN
    ),
    "linear": ProtocolSpec(OURS, solved, LinearProbe),
    "linear.sgd": ProtocolSpec(
        "ours: SGD on standardized features; a held-out tenth chooses rate and decay",
        swept,
        SGDGrid(),
    ),
    **{
        f"linear.{name}": ProtocolSpec(training.source, partial(trained, training), training)
        for name, training in (linear_augmented.PUBLISHED | transfer.PUBLISHED).items()
    },
    **{
        f"few_labels.{name}": ProtocolSpec(OURS, partial(few, amount, solved), amount)
        for name, amount in few_labels.SOLVED.items()
    },
    **{
        f"few_labels.{name}": ProtocolSpec(
            training.source, partial(few, amount, partial(trained, training)), training
        )
        for name, (amount, training) in few_labels.PUBLISHED.items()
    },
    **{
        f"fine_tune.{name}": ProtocolSpec(training.source, partial(trained, training), training)
        for name, training in fine_tune.PUBLISHED.items()
    },
    **{
        name: ProtocolSpec(source, partial(machines, name), SVM)
        for name, (source, _) in svm.PUBLISHED.items()
    },
    **{
        f"detection.{name}": ProtocolSpec(
            _detected(name), partial(detection, setting), setting, "boxes"
        )
        for name, setting in detector_settings.PUBLISHED.items()
    },
    "analysis": ProtocolSpec(
        "RankMe (arXiv:2210.02885), LiDAR (arXiv:2312.04000), EqCo, JCL: see docs/analysis.md",
        analysis,
        FeatureAnalysis,
        "images",
    ),
}


def named(name: str) -> ProtocolSpec:
    """The protocol of this name; a near miss is offered."""
    if name not in PROTOCOLS:
        families = ", ".join(dict.fromkeys(n.split(".")[0] for n in PROTOCOLS))
        raise UserError(
            f'There is no protocol "{name}".{suggest(name, PROTOCOLS)} Families: {families}; '
            "`selfsight evaluate --protocols` lists all."
        )
    return PROTOCOLS[name]


def protocol(name: str, data: Any, options: EvalOptions) -> Evaluator:
    """The evaluator of this name on these data, which are of the kind that it opens."""
    return named(name).make(data, options)


def changed(training: ClassifierSettings, options: EvalOptions) -> ClassifierSettings:
    """The training with what the user asked for in place of what was published."""
    if options.epochs is not None:
        training = training.lasting(options.epochs)
    if options.batch_size is not None:
        training = replace(training, batch_size=options.batch_size)
    return _flagged(training, options.settings)


def _flagged(setting: AnySettings, flags: Sequence[str]) -> AnySettings:
    """Settings changed by flags as on the command line; a setting beneath none is --set.NAME."""
    if not flags:
        return setting
    return tyro.cli(
        type(setting),
        prog="selfsight evaluate RUN",
        default=setting,
        args=[flag.replace("--set.", "--", 1) for flag in flags],
        config=(tyro.conf.AvoidSubcommands,),
    )


def listing() -> list[dict[str, str]]:
    """A row for each protocol: its name, its settings in short, and its source."""
    return [
        {"name": name, "settings": in_short(found.setting), "source": found.source}
        for name, found in PROTOCOLS.items()
    ]


def in_short(setting: Any) -> str:
    """The settings that a reader compares, in one line."""
    if isinstance(setting, LabelAmount):
        return f"{setting.words} of the labels"
    if isinstance(setting, ClassifierSettings):
        return _of_training(setting)
    if isinstance(setting, DetectorSettings):
        kind = ("Mask" if setting.masks else "Faster") + f" R-CNN, {setting.neck.upper()}"
        rate = f"{setting.lr:g}"
        if setting.backbone_lr is not None:
            rate += f", backbone at {setting.backbone_lr:g}"
        length = f"{setting.iterations} iterations, batch {setting.batch_size}"
        return f"{kind}, {length}, rate {rate}"
    if is_dataclass(setting):
        shown = [f for f in fields(setting) if f.name not in UNTOLD]
        return ", ".join(f"{f.name.replace('_', ' ')} {f.default}" for f in shown)
    return ""


def _of_training(training: ClassifierSettings) -> str:
    def rate(optim: Any) -> str:
        scale = {"linear": " x batch/256", "sqrt": " x sqrt(batch)", "none": ""}[optim.scale]
        return f"{optim.lr:g}{scale}"

    head = training.head
    kind = head.name + (f" ({head.variant})" if head.name == "lars" else "")
    rates = ", ".join(f"{r:g}" for r in training.rates)
    under = "frozen" if training.backbone is None else f"at {rate(training.backbone)}"
    steps = [f"{m / training.epochs:.0%}" for m in head.schedule.milestones]
    schedule = f"x{head.schedule.gamma:g} at {', '.join(steps)}" if steps else head.schedule.name
    return (
        f"{training.epochs} epochs, batch {training.batch_size}, {kind}, head at "
        f"{f'one of {rates}' if rates else rate(head)}, backbone {under}, {schedule}, "
        f"decay {head.weight_decay:g}"
    )
