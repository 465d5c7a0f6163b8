"""SwAV's loss for two views, against Algorithm 1 of arXiv:2006.09882: codes of each view alone."""

import torch
import torch.nn.functional as F
from lightly.loss import SwaVLoss
from solo.losses import swav_loss_func
from solo.utils.sinkhorn_knopp import SinkhornKnopp
from stable_pretraining.losses import SwAVLoss

torch.manual_seed(0)
z1, z2 = F.normalize(torch.randn(8, 6), dim=1), F.normalize(torch.randn(8, 6), dim=1)
prototypes = torch.nn.Linear(6, 5, bias=False)
prototypes.weight.data = F.normalize(prototypes.weight.data, dim=1)
with torch.no_grad():
    scores = [prototypes(z1), prototypes(z2)]


def codes(s):
    """Algorithm 1's sinkhorn, three iterations with epsilon 0.05."""
    q = torch.exp(s / 0.05).T
    q = q / q.sum()
    for _ in range(3):
        q = q / q.sum(1, keepdim=True) / len(q)
        q = q / q.sum(0, keepdim=True) / q.shape[1]
    return (q * q.shape[1]).T


def swapped(q1, q2):
    """Mean cross-entropy of each view's prediction with the other's code, temperature 0.1."""
    p1, p2 = ((s / 0.1).log_softmax(1) for s in scores)
    return (-(q1 * p2).sum(1).mean() - (q2 * p1).sum(1).mean()) / 2


solo = SinkhornKnopp(3, 0.05)
joint = codes(torch.cat(scores)).chunk(2)
print(f"Algorithm 1                       {swapped(*map(codes, scores)):.6f}")
print(f"lightly SwaVLoss                  {SwaVLoss()(scores, []).item():.6f}")
print(f"solo-learn                        {swav_loss_func(scores, list(map(solo, scores))):.6f}")
print(f"stable-pretraining SwAVLoss       {SwAVLoss()(z1, z2, prototypes).item():.6f}")
print(f"Algorithm 1, both views at once   {swapped(*joint):.6f}")
