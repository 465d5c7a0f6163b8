"""The kernel that draws, without a device to run it on.

`interpreted` compares it with torch; tests.views.interpreted calls it, in a process that has set
TRITON_INTERPRET. `python -m tests.triton_kernels.interpreted_philox compiled` prints, as JSON, what
it becomes on an H100 or H200, `operations DEVICE` whether torch's compiler makes code with the same
bits from the operations.
"""

import json
import sys
from itertools import product

import torch
from triton.runtime.jit import JITFunction

from selfsight import rng
from selfsight.triton_kernels.philox import launch_philox

ANY = torch.tensor([0, -1, 2**31, 2**32 - 1, 2**32, -(2**63), 2**63 - 1])
KEYS = {
    "zeros": (0, 0),
    "ones": (rng.MASK, rng.MASK),
    "first": (rng.MASK, 0),
    "second": (0, 1),
}
INDICES = {
    "empty": ANY[:0],
    "one": ANY[-1:],
    "any": ANY,
    "strided": ANY.flip(0).repeat_interleave(2)[1::2],
    "alike": ANY[-2:-1].expand(3),
    "many": torch.arange(300) * 7919 - 1000,
}
COUNTS = (0, 1, 4, 7)
MANY = 1001  # columns: more than one program's


def moments(n, blocks):
    """Every form of `at` that a draw takes."""
    return {
        "step": 5,
        "before": -3,
        "31 bits": 2**31,
        "all bits": 2**40 + rng.MASK,
        "tensor": torch.tensor(9),
        "tensor before": torch.tensor(-(2**62) - 9),
        "int32": torch.tensor(9, dtype=torch.int32),
        "single": torch.tensor([4]),
        "rows": torch.arange(n)[:, None] + 2**33,
        "blocks": torch.arange(blocks) - 1,
        "both": torch.arange(n * blocks).view(blocks, n).T,
    }


def same(key, index, count, at):
    """Whether words and numbers are those of torch's operations."""
    words = launch_philox(key, index, count, at, torch.int64)
    numbers = launch_philox(key, index, count, at, torch.float64)
    return torch.equal(words, rng.bits(key, index, count, at)) and torch.equal(
        numbers, rng.uniform(key, index, count, at)
    )


def interpreted():
    """How many draws were compared, and which of them differed."""
    draws = [("ones", name, COUNTS[-1], "tensor") for name in INDICES]
    draws += [("ones", "strided", count, "tensor") for count in COUNTS[:-1]]
    draws += [("second", "any", 7, at) for at in moments(0, 0)]
    draws += [(key, "one", 4, "step") for key in KEYS] + [("first", "one", MANY, "both")]
    differ = []
    for key, name, count, at in draws:
        index = INDICES[name]
        moment = moments(len(index), -(-count // 4))[at]
        if not same(KEYS[key], index, count, moment):
            differ.append((key, name, count, at))
    return {"compared": len(draws), "differ": differ}


def compiled():
    """What each launch_philox was compiled to."""
    from tests.views.compiled import compile_only

    found: list[dict] = []
    JITFunction.run = compile_only(found)
    steps = (0, 1, 16, rng.MASK, torch.tensor(3))
    draws = [(key, index, 7, 3) for key in KEYS.values() for index in (ANY[:1], ANY[1:])]
    draws += [(KEYS["ones"], ANY, count, at) for count in (1, 16) for at in steps]
    for draw, dtype in product(draws, (torch.int64, torch.float64)):
        launch_philox(*draw, dtype)
    return found


def operations(device):
    """Whether the bits are those of the operations one by one."""

    def draw(index, at):
        return rng.bits(KEYS["ones"], index, 5, at)

    made = torch.compile(draw, fullgraph=True, dynamic=False)
    there = made(ANY.to(device), torch.tensor(9, device=device))
    return torch.equal(draw(ANY, 9), there.cpu())


if __name__ == "__main__":
    torch.set_num_threads(1)
    ways = {"compiled": compiled, "operations": operations}
    print(json.dumps(ways[sys.argv[1]](*sys.argv[2:])))
