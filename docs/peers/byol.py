"""BYOL against google-deepmind/deepmind-research, which sums both directions."""

from lightly.loss import NegativeCosineSimilarity
from published import compare, published
from solo.losses import byol_loss_func
from stable_pretraining.losses import BYOLLoss

r = published("byol")
cosine, stable = NegativeCosineSimilarity(), BYOLLoss()
expected = r["loss"], r["grad_p1"], r["grad_p2"]
losses = {
    "4 + 2 (a + b), a, b of lightly": lambda p1, p2: (
        4 + 2 * (cosine(p1, r["z2"]) + cosine(p2, r["z1"]))
    ),
    "a + b of solo-learn": lambda p1, p2: byol_loss_func(p1, r["z2"]) + byol_loss_func(p2, r["z1"]),
    "a + b of stable-pretraining": lambda p1, p2: stable(p1, r["z2"]) + stable(p2, r["z1"]),
}
for name, loss in losses.items():
    compare(name, loss, [r["p1"], r["p2"]], *expected)
