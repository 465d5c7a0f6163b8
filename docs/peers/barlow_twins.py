"""Barlow Twins against facebookresearch/barlowtwins."""

import torch
from lightly.loss import BarlowTwinsLoss
from published import compare, published
from solo.losses import barlow_loss_func
from stable_pretraining.losses import BarlowTwinsLoss as StableLoss

torch.set_default_dtype(torch.float64)  # of the batch norm that solo-learn builds in its loss
r = published("barlow")
inputs = [r["z1"], r["z2"]]
for lam in ("0.0051", "0.1"):
    expected = r[f"loss_lam{lam}"], r[f"grad_z1_lam{lam}"], r[f"grad_z2_lam{lam}"]
    solo = lambda a, b, lam=lam: barlow_loss_func(a, b, float(lam), scale_loss=1)  # noqa: E731
    compare(f"lightly, lambda={lam}", BarlowTwinsLoss(float(lam)).double(), inputs, *expected)
    compare(f"solo-learn, scale_loss=1, lambda={lam}", solo, inputs, *expected)
    compare(f"stable-pretraining, lambda={lam}", StableLoss(float(lam)), inputs, *expected)
    # Its standard deviation divides by N - 1, so the diagonal is at most (N - 1) / N.
    z = r["z1"]
    print(f"  loss of equal views: {StableLoss(float(lam))(z, z):.6f}, lambda={lam}")
