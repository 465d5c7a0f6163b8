"""Three steps of LARS against facebookresearch/moco-v3, momentum 0.9.

There biases and batch-norm weights have neither decay nor trust ratio. lightly leaves the ratio out
where weight decay is 0, so that they get a group of their own; the others have a flag.
"""

import torch
from lightly.utils.lars import LARS
from published import published
from solo.utils.lars import LARSWrapper
from stable_pretraining import optim

r = published("lars")
names = [key.removeprefix("p0_") for key in r if key.startswith("p0_")]


def steps(build):
    """Parameters after three steps with the given gradients."""
    params = {name: torch.nn.Parameter(r[f"p0_{name}"].clone()) for name in names}
    optimizer = build(params)
    for step, lr in enumerate(r["lrs"].tolist()):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for name, p in params.items():
            p.grad = r[f"g{step}_{name}"].clone()
        optimizer.step()
    return params


def groups(params):
    """Vectors in a group without weight decay."""
    vectors = [p for p in params.values() if p.ndim == 1]
    return [
        {"params": [p for p in params.values() if p.ndim > 1]},
        {"params": vectors, "weight_decay": 0.0},
    ]


for decay in ("1e-6", "0.1"):
    settings = dict(lr=0.5, momentum=0.9, weight_decay=float(decay))
    builders = {
        "lightly LARS": lambda p, s=settings: LARS(groups(p), **s),
        "solo-learn LARSWrapper": lambda p, s=settings: LARSWrapper(
            torch.optim.SGD(p.values(), **s), exclude_bias_n_norm=True
        ),
        "stable-pretraining LARS": lambda p, s=settings: optim.LARS(
            p.values(), **s, exclude_bias_n_norm=True
        ),
    }
    for title, build in builders.items():
        apart = {
            name: (p - r[f"mocov3_wd{decay}_step3_{name}"]).abs().max() / p.abs().max()
            for name, p in steps(build).items()
        }
        worst = max(apart, key=apart.get)
        print(f"{title:24} weight decay {decay:5} {apart[worst]:.0e} apart, relative ({worst})")
