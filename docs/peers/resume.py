"""Queues and centers after a state dict was saved and loaded into a new object."""

import lightly.loss
import torch
from solo.losses import DINOLoss as SoloDINOLoss
from solo.methods import NNCLR, MoCoV2Plus
from stable_pretraining.losses import DINOv1Loss
from stable_pretraining.methods import MoCov2
from tests.methods.utils import DATA_KWARGS, gen_base_kwargs  # of the solo-learn package

torch.manual_seed(0)
base = gen_base_kwargs(cifar=True, batch_size=4) | DATA_KWARGS | {"disable_knn_eval": True}
momentum = gen_base_kwargs(cifar=True, momentum=True) | DATA_KWARGS
momentum |= {"disable_knn_eval": True, "momentum_classifier": False}
head = dict(proj_output_dim=8, proj_hidden_dim=16, temperature=0.2, queue_size=16)
encoder = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten())


def stable_dino():
    """DINOv1Loss after one update of its center."""
    loss = DINOv1Loss()
    loss.update_center(torch.randn(2, 4, 8))
    loss.apply_center_update()
    return loss


CASES = {  # built and used, built anew, the tensor
    "lightly NTXentLoss, memory bank": (
        lambda: lightly.loss.NTXentLoss(memory_bank_size=(16, 8)),
        lambda: lightly.loss.NTXentLoss(memory_bank_size=(16, 8)),
        lambda m: m.memory_bank.bank,
    ),
    "lightly DINOLoss, center": (
        lambda: lightly.loss.DINOLoss(8),
        lambda: lightly.loss.DINOLoss(8),
        lambda m: m.center,
    ),
    "solo-learn MoCoV2Plus, queue": (
        lambda: MoCoV2Plus(**momentum, **head),
        lambda: MoCoV2Plus(**momentum, **head),
        lambda m: m.queue,
    ),
    "solo-learn NNCLR, queue": (
        lambda: NNCLR(**base, **head, pred_hidden_dim=16),
        lambda: NNCLR(**base, **head, pred_hidden_dim=16),
        lambda m: m.queue,
    ),
    "solo-learn DINOLoss, center": (
        lambda: SoloDINOLoss(8, 0.04, 0.04, 1, 1),
        lambda: SoloDINOLoss(8, 0.04, 0.04, 1, 1),
        lambda m: m.center,
    ),
    "stable-pretraining MoCov2, queue": (
        lambda: MoCov2(encoder, projector_dims=(16, 8), queue_length=16),
        lambda: MoCov2(encoder, projector_dims=(16, 8), queue_length=16),
        lambda m: m.queue.out,
    ),
    "stable-pretraining DINOv1Loss, center": (stable_dino, DINOv1Loss, lambda m: m.center),
}
for name, (build, build_anew, read) in CASES.items():
    used, new = build(), build_anew()
    read(used).normal_()
    new.load_state_dict(used.state_dict())
    tensor = read(new)
    same = tensor is not None and torch.equal(tensor, read(used))
    print(f"{name:40} {'restored' if same else f'NOT restored ({type(tensor).__name__})'}")
