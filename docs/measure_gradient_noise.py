"""Measure what two losses do to the gradient: EqCo's few negatives, and JCL's closed form.

    selfsight study eqco_negatives --scale small --data DATA --arms cifar10_v2_k4096 \\
        --again --keep-epochs 20 --ledger OWN --work WORK
    python -m docs.measure_gradient_noise DATA WORK/RUN/checkpoints/epoch_20.pt [--batches B]

The network is that of MoCo v2 at the scale `small`, fixed: every batch gives a gradient of each
loss. Signal to noise is |mean gradient|^2 over the sum of the variances of its elements.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from selfsight.losses.contrastive import contrastive_nll, jcl, queue_info_nce
from selfsight.recipe import Recipe
from selfsight.studies import ARMS
from selfsight.studies.plan_jobs import Job, open_study_data
from selfsight.train.loop import load_batches
from selfsight.train.pretrain import build_loader, build_new_state

CPU = torch.device("cpu")
ALPHA = 4096.0
PAST = 8  # batches whose keys make a queue of 4096
Gradients = dict[str, list[Tensor]]


def open_arm(name: str, data: str) -> tuple[torch.nn.Module, Iterator[list[Tensor]], Recipe]:
    """Build the method of an arm at the scale small, and its batches of views."""
    recipe = replace(replace(ARMS[name], scale="small").build(), precision="float32")
    study, _, arm = name.partition(".")
    job = Job(study=study, arm=arm, scale="small", recipe=recipe, adapted=recipe)
    images = open_study_data(job, data, CPU, Console(quiet=True)).train
    method = build_new_state(recipe, images, CPU).method.train()
    loader = build_loader(recipe, images, CPU)
    return method, (batch.views for batch in load_batches(loader, recipe, 0)), recipe


def load_weights(method: torch.nn.Module, checkpoint: str) -> None:
    """Load student, teacher and queue of a run of MoCo v2, which JCL's fit too."""
    saved = torch.load(checkpoint, weights_only=True, map_location=CPU)
    method.load_state_dict(saved["method"])


def negatives_losses(
    q: Tensor, k: Tensor, past: list[Tensor], t: float, g: torch.Generator
) -> Iterator[tuple[str, Tensor]]:
    """MoCo's loss with K keys of the batch before: shared by all queries, or sampled by each."""
    positive = (q * k).sum(1) / t
    last = q @ past[-1].T / t
    yield "K = 4096", _nll(positive, q @ torch.cat(past).T / t)
    for count in (256, 64, 16):
        shared = last[:, torch.randperm(len(k), generator=g)[:count]]
        own = last.gather(1, torch.rand(last.shape, generator=g).argsort(1)[:, :count])
        for name, logits in (("shared", shared), ("own", own)):
            yield f"K = {count}, {name}", _nll(positive, logits)
            yield f"K = {count}, {name}, EqCo", _nll(positive, logits, ALPHA)


def _nll(positive: Tensor, logits: Tensor, alpha: float | None = None) -> Tensor:
    return contrastive_nll(positive, logits.logsumexp(1), logits.shape[1], alpha).mean()


def measure_negatives(data: str, checkpoint: str, batches: int) -> Gradients:
    """Gradients of MoCo v2 by number of negatives."""
    method, views, recipe = open_arm("eqco_negatives.cifar10_v2_k4096", data)
    load_weights(method, checkpoint)
    g, past, found = torch.Generator().manual_seed(0), [], defaultdict(list)
    for x1, x2 in islice(views, batches + PAST):
        with torch.no_grad():
            k = F.normalize(method.teacher(x2)[1], dim=1)
        if len(past) == PAST:
            q = F.normalize(method.student(x1)[1], dim=1)
            for name, loss in negatives_losses(q, k, past, recipe.method.temperature, g):
                found[name].append(gradient(loss, method))
        past = [*past, k][-PAST:]
    return found


def measure_jcl(data: str, checkpoint: str, batches: int) -> Gradients:
    """Gradients of the plain loss over four keys, and of JCL's by lambda."""
    method, views, recipe = open_arm("jcl_multi_key.cifar10_jcl", data)
    load_weights(method, checkpoint)
    found, queue, t = defaultdict(list), method.queue.read(), recipe.method.temperature
    for x, *others in islice(views, batches):
        with torch.no_grad():
            keys = torch.stack([F.normalize(method.teacher(other)[1], dim=1) for other in others])
        q = method.student(x)[1]
        plain = queue_info_nce(q, keys, queue, temperature=t)
        found["four keys, plain"].append(gradient(plain, method))
        for strength in (1.0, 2.0, 4.0, 8.0):
            loss = jcl(q, keys, queue, temperature=t, strength=strength)
            found[f"JCL, lambda {strength:g}"].append(gradient(loss, method))
    return found


def gradient(loss: Tensor, method: torch.nn.Module) -> Tensor:
    """The gradient of all weights of the student, in one vector."""
    weights = list(method.student.parameters())
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights, retain_graph=True)])


def describe(found: Gradients) -> Iterator[str]:
    """Length and signal to noise of each gradient, and how far it is from the first."""
    first = torch.stack(next(iter(found.values())))
    for name, rows in found.items():
        g = torch.stack(rows)
        products = g @ g.T
        n, power = len(g), float(products.diagonal().mean())
        # Products of different batches: unbiased for the square of the mean.
        signal = float(products.sum() - products.trace()) / (n * (n - 1))
        ratio = signal / (power - signal)
        away = float(((g - first).norm(dim=1) / first.norm(dim=1)).mean())
        yield f"{name:24s} length {power**0.5:.2f}  SNR {ratio:.2f}  relative distance {away:.2f}"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m docs.measure_gradient_noise")
    parser.add_argument("data")
    parser.add_argument("checkpoint")
    parser.add_argument("--batches", type=int, default=24)
    args = parser.parse_args()
    for measure in (measure_negatives, measure_jcl):
        print(*describe(measure(args.data, args.checkpoint, args.batches)), sep="\n")


if __name__ == "__main__":
    main()
