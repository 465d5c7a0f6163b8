"""InfoNCE against a queue, against facebookresearch/moco (MoCo v1 and v2)."""

import torch.nn.functional as F
from lightly.loss import NTXentLoss
from published import compare, published
from solo.losses import moco_loss_func

r = published("moco_infonce")
k = F.normalize(r["k"], dim=1)
for t, key in ((0.07, "T0p07"), (0.2, "T0p2")):
    lightly = NTXentLoss(temperature=t, memory_bank_size=(24, 8)).double()
    lightly.memory_bank.bank = r["queue"].T.clone()
    losses = {
        "lightly NTXentLoss with memory bank": lambda q, f=lightly: f(q, r["k"]),
        "solo-learn moco_loss_func": lambda q, t=t: moco_loss_func(
            F.normalize(q, dim=1), k, r["queue"], t
        ),
    }
    for name, loss in losses.items():
        compare(f"{name}, T={t}", loss, [r["q"]], r[f"loss_{key}"], r[f"grad_q_{key}"])
