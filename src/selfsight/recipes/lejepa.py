"""LeJEPA recipes."""

from dataclasses import replace

from selfsight.methods.lejepa import LeJEPAConfig
from selfsight.optim import OPTIMS
from selfsight.recipe import Recipe
from selfsight.recipes.shared_settings import cifar10
from selfsight.views import byol


def cifar10_r18_300ep() -> Recipe:
    """ResNet-18 on CIFAR-10, 300 epochs, two views.

    Reference: 91.0 % linear top-1, online (facebookresearch/eb_jepa, image_jepa, README, with
    padding 2 in the stem).
    """
    view = replace(byol(32, min_scale=0.2)[0], blur=0.0, solarize=0.1)
    # Its loss is |z1 - z2|^2 / dim + 10 SIGReg / batch: four times ours with this weight. So the
    # learning rate is four times its 0.3, and decay a quarter: the same steps, clipped or not.
    sigreg_weight = 2.5 / (2.5 + 256)
    optim = replace(
        OPTIMS["lars"], variant="clipped", lr=1.2, weight_decay=2.5e-5, trust_coefficient=0.02
    )
    return cifar10(
        LeJEPAConfig(num_small=0, num_slices=256, sigreg_weight=sigreg_weight),
        (view, view),
        optim,
        epochs=300,
        batch_size=256,
        save_every=10,
    )
