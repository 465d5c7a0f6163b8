"""NNCLR: how many of the nearest neighbors are the query itself, after one batch in the queue?"""

import solo.methods.nnclr as solo_nnclr
import stable_pretraining.methods.nnclr as stable_nnclr
import torch
from lightly.models.modules import NNMemoryBankModule
from tests.methods.utils import DATA_KWARGS, gen_base_kwargs  # of the solo-learn package

torch.manual_seed(0)


def show(name, queries, neighbors):
    """Print how many rows are equal."""
    same = torch.isclose(queries, neighbors, atol=1e-6).all(1)
    print(f"{name:24} {int(same.sum())} of {len(same)} neighbors are the query itself")


bank = NNMemoryBankModule(size=(16, 8))
bank(torch.randn(4, 8), update=True)
z = torch.randn(4, 8)
show("lightly", z, bank(z, update=True))

settings = dict(proj_output_dim=8, proj_hidden_dim=16, pred_hidden_dim=16)
settings |= dict(temperature=0.2, queue_size=16)
base = gen_base_kwargs(cifar=True, batch_size=4) | DATA_KWARGS
model = solo_nnclr.NNCLR(**base, **settings, disable_knn_eval=True)
model.log = model.log_dict = lambda *_, **__: None
calls, find = [], model.find_nn
model.find_nn = lambda z: calls.append((z, find(z)[1])) or find(z)
for _ in range(2):
    images = [torch.randn(4, 3, 32, 32) for _ in range(2)]
    model.training_step([torch.arange(4), images, torch.zeros(4, dtype=torch.long)], 0)
show("solo-learn", *calls[-2])

encoder = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten())
model = stable_nnclr.NNCLR(
    encoder, projector_dims=(16, 8), predictor_hidden_dim=16, queue_length=16
)
calls, nearest = [], stable_nnclr._nearest_neighbour
stable_nnclr._nearest_neighbour = lambda z, s: calls.append((z, nearest(z, s))) or nearest(z, s)
for _ in range(2):
    model(torch.randn(4, 3, 32, 32), torch.randn(4, 3, 32, 32))
show("stable-pretraining", *calls[-2])
