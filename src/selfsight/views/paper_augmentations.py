"""Augmentations of the papers, as tuples of views.

Values and their order are those of the official code: facebookresearch/moco (v1, v2; also SimSiam,
JCL and Fast-MoCo), google-research/simclr, google-deepmind/deepmind-research byol/,
facebookresearch/moco-v3, barlowtwins, vicreg and swav. Interpolation is bilinear where the code
keeps torchvision's default, bicubic where it says so (SimCLR, BYOL, Barlow Twins, VICReg).
"""

from collections.abc import Callable
from dataclasses import replace

from selfsight.check_settings import FEW, check_setting
from selfsight.data.eval_transform import Interpolation
from selfsight.errors import UserError
from selfsight.views.view_settings import View

FLIP_FIRST = ("flip", "jitter", "gray", "blur", "solarize")
FLIP_LAST = ("jitter", "gray", "blur", "solarize", "flip")
GRAY_FIRST = ("gray", "jitter", "flip")
BLUR_BEFORE_GRAY = ("jitter", "blur", "gray", "flip")


def moco_v1(size: int = 224) -> tuple[View, ...]:
    """InstDisc and MoCo v1: gray before a strong jitter that is always applied, no blur."""
    view = View(
        size=size, jitter=(0.4, 0.4, 0.4, 0.4), jitter_p=1.0, gray=0.2, blur=0.0, order=GRAY_FIRST
    )
    return (view, view)


def moco_v2(
    size: int = 224, *, interpolation: Interpolation = "bilinear", num_views: int = 2
) -> tuple[View, ...]:
    """MoCo v2 and SimSiam; JCL with more views; Fast-MoCo with bicubic."""
    check_setting("num_views", num_views, int, FEW)
    return (View(size=size, interpolation=interpolation, order=FLIP_LAST),) * num_views


def simclr(size: int = 224, *, strength: float = 1.0) -> tuple[View, ...]:
    """SimCLR; strength scales the jitter (1 for ImageNet, 0.5 for CIFAR-10)."""
    if not 0 <= strength <= 2.5:
        raise UserError(f"strength is {strength}: give 0 to 2.5, above which hue would pass 0.5.")
    view = View(
        size=size,
        scale=(0.08, 1.0),
        interpolation="bicubic",
        jitter=(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength),
        blur_kernel=0.1,
        order=FLIP_FIRST,
    )
    return (view, view)


def byol(size: int = 224, *, min_scale: float = 0.08) -> tuple[View, ...]:
    """BYOL: the first view is always blurred; the second rarely, and sometimes solarized.

    Brightness multiplies, as in torchvision; BYOL's own code adds.
    """
    view = View(
        size=size,
        scale=(min_scale, 1.0),
        interpolation="bicubic",
        jitter=(0.4, 0.4, 0.2, 0.1),
        blur=1.0,
        blur_kernel=0.1,
        order=FLIP_FIRST,
    )
    return (view, replace(view, blur=0.1, solarize=0.2))


def moco_v3(size: int = 224, *, min_scale: float = 0.2) -> tuple[View, ...]:
    """BYOL's views in MoCo v3: flip last; min_scale 0.2 for ResNet, 0.08 for ViT."""
    return tuple(
        replace(v, interpolation="bilinear", blur_kernel=None, order=FLIP_LAST)
        for v in byol(size, min_scale=min_scale)
    )


def barlow_twins(size: int = 224) -> tuple[View, ...]:
    """BYOL's views in Barlow Twins and VICReg: with PIL's wide blur."""
    return tuple(replace(v, blur_kernel=None) for v in byol(size))


def msbreg(size: int = 224, *, num_views: int = 2) -> tuple[View, ...]:
    """MSBReg: every view always blurred and sometimes solarized."""
    check_setting("num_views", num_views, int, FEW)
    return (replace(barlow_twins(size)[0], solarize=0.2, interpolation="bilinear"),) * num_views


def simo(size: int = 224) -> tuple[View, ...]:
    """SiMo: MoCo v2's settings, with blur before gray."""
    return tuple(replace(v, order=BLUR_BEFORE_GRAY) for v in moco_v2(size))


def swav(
    size: int = 224,
    *,
    small_size: int | None = None,
    counts: tuple[int, int] = (2, 6),
    scales: tuple[tuple[float, float], tuple[float, float]] = ((0.14, 1.0), (0.05, 0.14)),
) -> tuple[View, ...]:
    """SwAV's multi-crop: SimCLR's color augmentation on a few large and several small crops.

    By default the small crops are 3/7 as wide: 96 pixels for 224.
    """
    large = replace(simclr(size)[0], scale=scales[0], interpolation="bilinear", blur_kernel=None)
    small = replace(small_crop(large), scale=scales[1])
    small = small if small_size is None else replace(small, size=small_size)
    check_setting("counts", counts, tuple[int, int], FEW)
    return (large,) * counts[0] + (small,) * counts[1]


def small_crop(large: View) -> View:
    """Return SwAV's small crop for a large one: 3/7 as wide, 5 to 14 % of the image."""
    return replace(large, size=max(1, large.size * 3 // 7), scale=(0.05, 0.14))


def without_blur(views: tuple[View, ...]) -> tuple[View, ...]:
    """Remove the blur, as papers do for images of 32 pixels."""
    return tuple(replace(v, blur=0.0) for v in views)


PRESETS: dict[str, Callable[..., tuple[View, ...]]] = {
    "moco_v1": moco_v1,
    "moco_v2": moco_v2,
    "simclr": simclr,
    "byol": byol,
    "moco_v3": moco_v3,
    "barlow_twins": barlow_twins,
    "msbreg": msbreg,
    "simo": simo,
    "swav": swav,
}
