"""NT-Xent against google-research/simclr, whose loss is the sum of both views' means."""

from lightly.loss import NTXentLoss
from published import compare, published
from solo.losses import simclr_loss_func
from stable_pretraining.losses import NTXEntLoss

for t in ("0.1", "0.5", "1.0"):
    r = published("simclr_ntxent_tf")
    z1, z2 = r["hidden"].chunk(2)
    losses = {
        "lightly NTXentLoss": NTXentLoss(temperature=float(t)),
        "solo-learn simclr_loss_func": lambda a, b, t=t: simclr_loss_func(a, b, float(t)),
        "stable-pretraining NTXEntLoss": NTXEntLoss(temperature=float(t)),
    }
    for name, loss in losses.items():
        grads = r[f"grad_hidden_T{t}"].chunk(2)
        twice = lambda a, b, loss=loss: 2 * loss(a, b)  # noqa: E731
        compare(f"2 x {name}, T={t}", twice, [z1, z2], r[f"loss_T{t}"], *grads)
