"""The loss of MoCo v3 against facebookresearch/moco-v3, which has a factor of 2 T."""

from published import compare, published
from stable_pretraining.methods.mocov3 import _info_nce

r = published("mocov3_loss")
inputs, keys = [r["q1"], r["q2"]], (r["k1"], r["k2"])


def as_in_the_method(q1, q2, t):
    """The loss in stable_pretraining.methods.MoCov3.forward: the mean of both directions."""
    return (_info_nce(q1, keys[1], t) + _info_nce(q2, keys[0], t)) / 2


for t, key in ((0.2, "T0p2"), (1.0, "T1p0")):
    grads = r[f"grad_q1_{key}"], r[f"grad_q2_{key}"]
    for name, scale in (("stable-pretraining MoCov3", 1), ("4 T x stable-pretraining", 4 * t)):
        loss = lambda q1, q2, s=scale, t=t: s * as_in_the_method(q1, q2, t)  # noqa: E731
        compare(f"{name}, T={t}", loss, inputs, r[f"loss_{key}"], *grads)
