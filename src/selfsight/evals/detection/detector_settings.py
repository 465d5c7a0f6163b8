"""How a detector is built and trained: the published settings, and small ones for few images."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from selfsight.errors import UserError, check_choice
from selfsight.optim import Schedule
from selfsight.views.spec import MEAN, STD

Neck = Literal["c4", "fpn"]
Head = Literal["2fc", "4conv1fc"]

VOC_SIDES = tuple(range(480, 801, 32))
COCO_SIDES = tuple(range(640, 801, 32))


@dataclass(frozen=True, kw_only=True)
class DetectorSettings:
    """Network, schedule and scoring. Defaults: R50-C4 of MoCo on VOC (its detection configs)."""

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
    anchors_sampled: int = 256  # an image, half of them on objects if there are so many
    boxes_sampled: int = 512  # an image, a quarter of them on objects

    iterations: int = 24000
    milestones: tuple[int, ...] = (18000, 22000)  # the rate falls to a tenth
    warmup: int = 100
    batch_size: int = 16
    lr: float = 0.02  # of new layers
    backbone_lr: float | None = None  # of what was pretrained; None: lr
    momentum: float = 0.9
    weight_decay: float = 1e-4  # not of norms, as in detectron2
    short_sides: tuple[int, ...] = VOC_SIDES  # one is drawn for each image
    longest: int = 1333
    test_short_side: int = 800
    precise_bn: int = 200  # batches from which the norms' statistics are taken anew at the end
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    max_detections: int = 100  # an image
    recall_points: int = 101  # at which precision is averaged; VOC 2007 has 11
    trials: int = 1  # seeds whose mean is given

    def __post_init__(self) -> None:
        check_choice("neck", self.neck, get_args(Neck))
        check_choice("head", self.head, get_args(Head))
        for name in ("iterations", "batch_size", "longest", "test_short_side", "trials"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}. Give 1 or more.")
        for name in ("lr", "backbone_lr"):
            rate = getattr(self, name)
            if rate is not None and not rate > 0:
                raise UserError(f"{name} is {rate}. Give a number above 0.")
        if not self.short_sides or min(self.short_sides) < 1:
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
        if self.recall_points < 2:
            raise UserError(f"recall_points is {self.recall_points}. Give 2 or more.")
        self.schedule.check(self.iterations)

    @property
    def schedule(self) -> Schedule:
        """The rate over iterations, in shares of its peak."""
        return Schedule(
            name="step" if self.milestones else "constant",
            milestones=self.milestones,
            warmup_epochs=self.warmup,
            warmup_start=0.001,
        )


def with_iterations(setting: DetectorSettings, iterations: int) -> DetectorSettings:
    """The same schedule over fewer or more iterations: milestones and warm-up keep their shares."""
    share = iterations / setting.iterations
    return replace(
        setting,
        iterations=iterations,
        milestones=tuple(round(m * share) for m in setting.milestones),
        warmup=round(setting.warmup * share),
        precise_bn=min(setting.precise_bn, iterations),
    )


# MoCo (He et al. 2019, arXiv:1911.05722, and its detection configs). The mean of five trials is
# published; VOC 2007 averages precision at 11 recalls, as detectron2's evaluator does for it.
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
    # 0.02 for 16 images gives at its rate of 0.2.
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
