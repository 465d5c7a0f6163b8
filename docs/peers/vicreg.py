"""VICReg against facebookresearch/vicreg, whose variance term averages the two branches."""

from lightly.loss import VICRegLoss
from published import compare, published
from solo.losses import vicreg_loss_func
from stable_pretraining.losses import VICRegLoss as StableLoss

r = published("vicreg")
inputs = [r["z1"], r["z2"]]
for weights, key in (
    ((25, 25, 1), "full"),
    ((1, 0, 0), "sim"),
    ((0, 1, 0), "std"),
    ((0, 0, 1), "cov"),
):
    expected = r[f"loss_{key}"], r[f"grad_z1_{key}"], r[f"grad_z2_{key}"]
    compare(f"lightly, {weights}", VICRegLoss(*weights), inputs, *expected)
    solo = lambda a, b, w=weights: vicreg_loss_func(a, b, *w)  # noqa: E731
    compare(f"solo-learn, {weights}", solo, inputs, *expected)
    compare(f"stable-pretraining, {weights}", StableLoss(*weights), inputs, *expected)
