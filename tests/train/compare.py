"""`python -m tests.train.compare NAME...`: is a compiled method the eager one?

In float64, and on a GPU if there is one: what is left of a difference is then a mistake.
"""

import argparse
import copy
from dataclasses import replace
from typing import Any

import torch

from selfsight.compile_cache import persist_compile_cache
from selfsight.losses import float32_losses
from selfsight.train.compile import compile_networks
from tests.methods.small import make, moment, views


def make_double(name: str, device: torch.device) -> Any:
    """A small method in float64, but for scalars: those would be numbers that never change."""
    method = make(name).double().to(device)
    for key, buffer in list(method.named_buffers(recurse=False)):
        if buffer.ndim == 0:
            setattr(method, key, buffer.float())
    return method


def compare(name: str, backend: str) -> tuple[float, int]:
    """Loss and gradients of three steps: the largest difference, and the graphs they share."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    eager = make_double(name, device)
    whole = copy.deepcopy(eager)
    compiled: Any = whole
    if backend == "inductor":  # as training does
        persist_compile_cache()
        float32_losses.is_compiled_on = lambda device: True
        compile_networks(whole)
    else:
        compiled = torch.compile(whole, fullgraph=True, dynamic=False, backend=backend)
    worst, graphs = 0.0, set()
    for step in range(3):
        at = moment(step)
        at = replace(at, step=at.step.to(device), index=at.index.to(device))
        seen = [x.to(device) for x in views(eager, step, dtype=torch.float64)]
        with torch.compiler.set_stance("force_eager"):
            results = [eager(seen, at)]
        results.append(compiled(seen, at))
        losses = [result.loss for result in results]
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=1e-6)
        for method, result in zip((eager, whole), results, strict=True):
            method.zero_grad(set_to_none=True)
            result.loss.backward()
            method.after_step(at, result)
        pairs = zip(whole.parameters(), eager.parameters(), strict=True)
        for mine, other in ((a.grad, b.grad) for a, b in pairs if b.grad is not None):
            far = (mine - other).abs().max() / (other.abs().max() + 1e-4)
            worst = max(worst, float(far))
        graphs.add(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert worst < 1e-5, f"{name}: gradients differ by {worst}"
    assert len(graphs) == 1, f"{name}: new graphs after the first step: {graphs}"
    if backend == "inductor":  # a later run of the process, with other weights
        again = make_double(name, device)
        compile_networks(again)
        again(seen, at).loss.backward()
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] in graphs, "compiled twice"
    return worst, graphs.pop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+")
    parser.add_argument("--backend", default="inductor")
    given = parser.parse_args()
    for word in given.names:
        far, count = compare(word, given.backend)
        print(f"{word}: gradients differ by at most {far:.1e} in {count} graphs")
