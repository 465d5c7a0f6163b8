"""Losses on two processes with half a batch each, against one process with the whole batch.

z = x W with one W for all; losses and gradients of W are averaged over processes, as DDP does.
Two gloo processes on the CPU, float64.
"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from lightly import loss as lightly
from solo import losses as solo
from solo.utils.sinkhorn_knopp import SinkhornKnopp
from stable_pretraining import losses as stable
from stable_pretraining.methods.mocov3 import _info_nce


def solo_swav(a, b):
    """SwAV as in solo.methods.SwAV: codes of each view, then the loss."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    return solo.swav_loss_func([a, b], [SinkhornKnopp(3, 0.05, world)(s.detach()) for s in (a, b)])


def second_step(build):
    """Loss of a second batch, after the first has entered the memory bank."""

    def loss(a, b):
        torch.manual_seed(0)
        criterion = build()
        criterion(a, b.detach())
        return criterion(b, a.detach())

    return loss


def bank(**settings):
    """InfoNCE with lightly's memory bank, as for MoCo."""
    return lightly.NTXentLoss(0.2, memory_bank_size=(16, 6), **settings).double()


def stable_swav(a, b):
    """SwAVLoss with fixed prototypes."""
    prototypes = torch.nn.Linear(6, 6, bias=False)
    prototypes.weight.data = torch.eye(6)
    return stable.SwAVLoss()(a, b, prototypes)


g = {"gather_distributed": True}
LOSSES = {
    "lightly NTXentLoss, gathering": lightly.NTXentLoss(**g),
    "lightly NTXentLoss": lightly.NTXentLoss(),
    "lightly memory bank, gathering": second_step(lambda: bank(**g)),
    "lightly memory bank": second_step(bank),
    "lightly BarlowTwinsLoss, gathering": lightly.BarlowTwinsLoss(**g),
    "lightly VICRegLoss, gathering": lightly.VICRegLoss(**g),
    "lightly VICRegLoss": lightly.VICRegLoss(),
    "lightly SwaVLoss, gathering": lambda a, b: lightly.SwaVLoss(sinkhorn_gather_distributed=True)(
        [a, b], []
    ),
    "lightly NegativeCosineSimilarity": lightly.NegativeCosineSimilarity(),
    "solo-learn simclr_loss_func": solo.simclr_loss_func,
    "solo-learn barlow_loss_func": solo.barlow_loss_func,
    "solo-learn vicreg_loss_func": solo.vicreg_loss_func,
    "solo-learn nnclr_loss_func": solo.nnclr_loss_func,
    "solo-learn swav_loss_func, SinkhornKnopp": solo_swav,
    "solo-learn byol_loss_func": solo.byol_loss_func,
    "stable-pretraining NTXEntLoss": stable.NTXEntLoss(),
    "stable-pretraining BarlowTwinsLoss": stable.BarlowTwinsLoss(),
    "stable-pretraining VICRegLoss": stable.VICRegLoss(),
    "stable-pretraining SwAVLoss": stable_swav,
    "stable-pretraining MoCov3, _info_nce": lambda a, b: _info_nce(a, b.detach(), 0.2),
    "stable-pretraining BYOLLoss": stable.BYOLLoss(),
}


def evaluate(loss, rank=0, world=1, alike=False):
    """Loss and gradient of W, averaged over processes; `alike`: both halves are the same."""
    g = torch.Generator().manual_seed(0)
    x1, x2 = (torch.randn(12, 5, generator=g, dtype=torch.float64) for _ in range(2))
    weight = 0.25 * torch.randn(5, 6, generator=g, dtype=torch.float64)
    weight.requires_grad_()  # columns of z with a deviation below 1, for VICReg
    x1, x2 = (torch.cat([x[:6], x[:6]]) if alike else x for x in (x1, x2))
    value = loss(*(x.chunk(world)[rank] @ weight for x in (x1, x2))).squeeze()
    value.backward()
    both = torch.cat([value.detach().flatten(), weight.grad.flatten()])
    if world > 1:
        dist.all_reduce(both)
    return both / world


def cases():
    """Every loss; Barlow Twins also on equal halves, whose statistics are those of the whole."""
    yield from ((False, *item) for item in LOSSES.items())
    yield from ((True, *item) for item in LOSSES.items() if "arlow" in item[0])


def work(rank, results):
    """Evaluate every loss on one of two processes."""
    torch.set_default_dtype(torch.float64)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    found = {}
    for alike, name, loss in cases():
        found[alike, name] = evaluate(loss, rank, 2, alike).tolist()
    if rank == 0:
        results.update(found)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(work, (results,), nprocs=2)
        for alike, name, loss in cases():
            one, two = evaluate(loss, alike=alike), torch.tensor(results[alike, name])
            apart = (one - two)[1:].abs().max() / one[1:].abs().max()
            agrees = torch.allclose(one, two, rtol=1e-5, atol=1e-7)
            title = name + ", equal halves" * alike
            print(
                f"{title:48} one {one[0]:9.5f}  two {two[0]:9.5f}  "
                f"gradient apart {apart:.0e}  {'agrees' if agrees else 'DIFFERS'}"
            )
