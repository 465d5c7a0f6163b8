"""Settings of detectors: those that are published, and small ones for few images."""

from dataclasses import dataclass, replace
from typing import Literal

from selfsight.check_settings import (
    BELOW_ONE,
    COUNT,
    COUNT_OR_NONE,
    LEARNING_RATE,
    NOT_NEGATIVE,
    PIXELS,
    POSITIVE,
    SHARE,
    WIDTH,
    Range,
    check_settings,
)
from selfsight.data.eval_transform import MEAN, STD
from selfsight.errors import UserError
from selfsight.optim import Schedule

Neck = Literal["c4", "fpn"]
Head = Literal["2fc", "4conv1fc"]

VOC_SIDES = tuple(range(480, 801, 32))
COCO_SIDES = tuple(range(640, 801, 32))

RANGES: dict[str, Range] = {
    **dict.fromkeys(("fpn_dim", "head_dim", "mask_dim"), WIDTH),
    **dict.fromkeys(("anchors", "short_sides", "longest", "test_short_side"), PIXELS),
    **dict.fromkeys(("rpn_train", "rpn_test", "anchors_sampled", "boxes_sampled"), WIDTH),
    **dict.fromkeys(("iterations", "batch_size", "max_detections", "trials"), COUNT),
    **dict.fromkeys(("milestones", "warmup", "precise_bn"), COUNT_OR_NONE),
    **dict.fromkeys(("lr", "backbone_lr"), LEARNING_RATE),
    **dict.fromkeys(("min_score", "max_iou"), SHARE),
    "momentum": BELOW_ONE,
    "weight_decay": NOT_NEGATIVE,
    "std": POSITIVE,
    "recall_points": Range(2, 10**6),
}


@dataclass(frozen=True, kw_only=True)
class DetectorSettings:
    """Model, training and scoring. Defaults: R50-C4 of MoCo on VOC (its detection configs)."""

    neck: Neck = "c4"
    masks: bool = False  # Mask R-CNN instead of Faster R-CNN
    extra_norm: bool = True  # c4: a batch norm after res5 (MoCo)
    head: Head = "2fc"  # fpn
    new_norm: bool = False  # fpn: batch norm in the pyramid and the heads' convolutions (SiMo)
    fpn_dim: int = 256
    head_dim: int = 1024  # fpn: width of the fully connected layers
    mask_dim: int = 256  # width of the mask head
    anchors: tuple[int, ...] | None = None
    """Sides in pixels. None: c4 2 to 32 strides at every place, fpn 8 strides on each level."""
    rpn_train: tuple[int, int] = (12000, 2000)  # proposals before and after suppression
    rpn_test: tuple[int, int] = (6000, 1000)
    anchors_sampled: int = 256  # per image, at most half of them positive
    boxes_sampled: int = 512  # per image, at most a quarter of them positive

    iterations: int = 24000
    milestones: tuple[int, ...] = (18000, 22000)  # the learning rate falls to a tenth
    warmup: int = 100
    batch_size: int = 16
    lr: float = 0.02  # of new layers
    backbone_lr: float | None = None  # of the pretrained backbone; None: lr
    momentum: float = 0.9
    weight_decay: float = 1e-4  # not applied to norms, as in detectron2
    short_sides: tuple[int, ...] = VOC_SIDES  # one is sampled for each image
    longest: int = 1333
    test_short_side: int = 800
    precise_bn: int = 200  # batches to recompute batch-norm statistics with, after training
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    max_detections: int = 100  # per image
    min_score: float = 0.05  # of a detection
    max_iou: float = 0.5  # of a detection with a better one of its class
    recall_points: int = 101  # over which precision is averaged; 11 for VOC 2007
    trials: int = 1  # number of seeds to average over

    def __post_init__(self) -> None:
        check_settings(self, "", RANGES)
        if not self.short_sides:
            raise UserError(f"short_sides is {self.short_sides}. Give at least one side in pixels.")
        if len(self.mean) != len(self.std):
            raise UserError(
                f"mean has {len(self.mean)} numbers and std {len(self.std)}. Give one per channel."
            )
        if self.anchors is not None and self.neck == "fpn" and len(self.anchors) != 5:
            raise UserError(
                f"anchors has {len(self.anchors)} sides, but a pyramid has 5 levels. Give 5, the "
                "finest level first, or None."
            )
        self.schedule.check(self.iterations, warmup="warmup", length="iterations")

    @property
    def schedule(self) -> Schedule:
        """The learning rate over iterations, relative to its peak."""
        return Schedule(
            name="step" if self.milestones else "constant",
            milestones=self.milestones,
            warmup_epochs=self.warmup,
            warmup_start=0.001,
        )


def with_iterations(settings: DetectorSettings, iterations: int) -> DetectorSettings:
    """Change the number of iterations; milestones and warm-up scale with it."""
    share = iterations / settings.iterations
    return replace(
        settings,
        iterations=iterations,
        milestones=tuple(round(m * share) for m in settings.milestones),
        warmup=round(settings.warmup * share),
        precise_bn=min(settings.precise_bn, iterations),
    )


# MoCo (He et al. 2019, arXiv:1911.05722, and its detection configs). The mean of five trials is
# published; for VOC 2007 precision is averaged at 11 recalls, as in detectron2's evaluator.
VOC_C4 = DetectorSettings(recall_points=11, trials=5)
COCO_C4_1X = DetectorSettings(
    masks=True,
    iterations=90_000,
    milestones=(60_000, 80_000),
    warmup=1000,
    short_sides=COCO_SIDES,
)
FPN = replace(COCO_C4_1X, neck="fpn", rpn_train=(2000, 1000), rpn_test=(1000, 1000), precise_bn=0)
# For some hundred images of a few hundred pixels; chosen by us, not published.
SMALL_FPN = replace(
    FPN,
    masks=False,
    new_norm=True,
    iterations=600,
    milestones=(450, 550),
    warmup=50,
    short_sides=(256, 288, 320, 352, 384),
    test_short_side=320,
    longest=640,
    rpn_train=(1000, 500),
    rpn_test=(500, 300),
    boxes_sampled=256,
    precise_bn=50,
)

PUBLISHED: dict[str, DetectorSettings] = {
    "voc_c4": VOC_C4,
    # MSBReg on VOC: MoCo's setting.
    "msbreg_voc": VOC_C4,
    "coco_c4_1x": COCO_C4_1X,
    "coco_c4_2x": replace(COCO_C4_1X, iterations=180_000, milestones=(120_000, 160_000)),
    "coco_fpn_msbreg": replace(FPN, lr=0.05, warmup=50),
    # EqCo and SiMo (Zhu et al. 2020, arXiv:2010.01929, appendix B.5): boxes, 12 epochs of the
    # 117,266 images with objects, falling after 7 and 11. The batch is not stated; 160 is what
    # 0.02 for 16 images gives at its learning rate of 0.2.
    "coco_fpn_simo": replace(
        FPN,
        masks=False,
        head="4conv1fc",
        new_norm=True,
        lr=0.2,
        batch_size=160,
        iterations=8795,
        milestones=(5130, 8062),
        warmup=100,
    ),
    # Fast-MoCo (Ci et al. 2022, arXiv:2207.08220, appendix B.4).
    "fast_moco_voc": replace(VOC_C4, lr=1e-2, backbone_lr=1e-3, trials=1),
    "fast_moco_coco": replace(COCO_C4_1X, lr=1e-2, backbone_lr=1e-3),
    "small_fpn": SMALL_FPN,
    "small_c4": replace(
        SMALL_FPN,
        neck="c4",
        new_norm=False,
        iterations=500,
        milestones=(375, 450),
        boxes_sampled=128,
    ),
}
