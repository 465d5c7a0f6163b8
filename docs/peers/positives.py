"""Is the positive among the negatives: is the queue read before this batch's keys enter it?

The loss that a library returns is compared with the two that the definition gives: with the queue
before the batch, and with the queue that the batch has entered.
"""

import lightly.loss
import solo.methods.mocov2plus as solo_moco
import torch
import torch.nn.functional as F
from stable_pretraining.methods import MoCov2
from tests.methods.utils import DATA_KWARGS, gen_base_kwargs  # of the solo-learn package

torch.manual_seed(0)


def info_nce(q, k, queue, temperature=0.2):
    """Cross-entropy of each query: its key first, then the rows of the queue."""
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], 1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long)).item()


def show(name, found, q, k, before, after):
    """Print what was returned and what each reading of the queue gives."""
    expected = info_nce(q, k, before), info_nce(q, k, after)
    print(f"{name:24} loss {found:.5f}; queue before {expected[0]:.5f}, after {expected[1]:.5f}")


q, k = (F.normalize(torch.randn(4, 8), dim=1) for _ in range(2))
criterion = lightly.loss.NTXentLoss(0.2, memory_bank_size=(8, 8))
before = criterion.memory_bank.bank.clone()
found = criterion(q.requires_grad_(), k).item()
show("lightly NTXentLoss", found, q, k, before, criterion.memory_bank.bank)

settings = dict(proj_output_dim=8, proj_hidden_dim=16, temperature=0.2, queue_size=8)
settings |= dict(momentum_classifier=False, disable_knn_eval=True)
base = gen_base_kwargs(cifar=True, momentum=True, batch_size=4) | DATA_KWARGS
model = solo_moco.MoCoV2Plus(**base, **settings)
model.log = model.log_dict = lambda *_, **__: None
calls, original = [], solo_moco.moco_loss_func
solo_moco.moco_loss_func = lambda *given: calls.append((*given, original(*given))) or calls[-1][-1]
before = model.queue.clone()
images = [torch.randn(4, 3, 32, 32) for _ in range(2)]
model.training_step([torch.arange(4), images, torch.zeros(4, dtype=torch.long)], 0)
q, k, *_, found = calls[0]  # the first of two directions
show("solo-learn MoCoV2Plus", found, q, k, before[1].T, model.queue[1].T)

encoder = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten())
model = MoCov2(encoder, projector_dims=(16, 8), queue_length=8)
model(*images)  # fills half of the queue
before = model.queue.get().clone()
out = model(*(torch.randn(4, 3, 32, 32) for _ in range(2)))
show("stable-pretraining MoCov2", out.loss.item(), out.queries, out.keys, before, model.queue.get())
