"""Kernels that work on lists of tensors, without a device to run them on.

`lars_steps` and `moving_averages` compare them with torch; tests.views.interpreted calls these, in
a process that has set TRITON_INTERPRET. `python -m tests.triton_kernels.interpreted_lists` prints,
as JSON, what the kernels become on an H100 or H200.
"""

import json
from itertools import product

import torch
from triton.runtime.jit import JITFunction

from selfsight.optim.lars import step_with_torch
from selfsight.triton_kernels.lars_kernels import launch_lars
from selfsight.triton_kernels.moving_average import launch_moving_average
from selfsight.triton_kernels.tensor_lists import BLOCK, CHUNK

VARIANTS = ("mocov3", "simclr", "larc", "clipped", "fastmoco")
TOLERANCE = 1e-6  # of the largest element
SETTINGS = {"weight_decay": 0.1, "momentum": 0.9, "trust_coefficient": 0.01}
SHAPES = [
    (4, 3, 5, 5),  # channels_last, with a contiguous gradient
    (),
    (7,),
    (BLOCK,),
    (CHUNK,),
    (CHUNK + 1,),  # its gradient lies at an odd address
    (31, 33),  # zero weights
    (65, 5),  # zero gradients, and then others
    (3, 2, 1, 1),
]


def weights(device="cpu"):
    """Tensors of all sizes and layouts."""
    made = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=made).to(device) for shape in SHAPES]
    tensors[0] = tensors[0].contiguous(memory_format=torch.channels_last)
    tensors[-3].zero_()
    return tensors


def gradients(step, device="cpu"):
    """Gradients of these tensors, at new addresses at each call."""
    made = torch.Generator().manual_seed(1 + step)
    tensors = [torch.randn(shape, generator=made).to(device) for shape in SHAPES]
    if step == 0:
        tensors[-2].zero_()
    odd = tensors[5]
    tensors[5] = torch.cat([odd.new_zeros(1), odd])[1:]
    return tensors


def difference(ours, theirs):
    """The largest difference of each tensor, relative to its largest element, or NaN."""
    found = [0.0]
    for a, b in zip(ours, theirs, strict=True):
        if a.numel():
            largest = float(b.double().abs().max())
            found.append(float((a.double() - b.double()).abs().max()) / (largest or 1.0))
    return float(torch.tensor(found).max())  # Python's max would lose a NaN


def lars_steps():
    """Differences between the kernels and torch in float64 after two steps, by case."""
    found = {}
    cases = [(variant, True, torch.tensor(0.3)) for variant in VARIANTS]
    cases += [(variant, False, 0.3) for variant in ("mocov3", "simclr", "fastmoco")]
    cases += [("clipped", True, 0.0)]
    for variant, adapt, lr in cases:
        group = SETTINGS | {"variant": variant, "adapt": adapt, "lr": lr}
        ours, theirs = weights(), [w.double() for w in weights()]
        sides = [(launch_lars, ours, torch.float32), (step_with_torch, theirs, torch.float64)]
        for step_group, params, dtype in sides:
            params.insert(3, torch.zeros(0, 3, dtype=dtype))
            buffers = [torch.zeros_like(w) for w in params]
            for step, found_inf in enumerate((None, torch.tensor(0.0))):
                grads = [g.to(dtype) for g in gradients(step)]
                grads.insert(3, torch.zeros(0, 3, dtype=dtype))
                step_group(group, params, grads, buffers, found_inf)
            params += buffers
        found[f"{variant} {adapt} {lr}"] = difference(ours, theirs)
    before = [x.clone() for x in ours]
    params, buffers = ours[: len(ours) // 2], ours[len(ours) // 2 :]
    nans = [torch.full_like(w, torch.nan) for w in params]
    launch_lars(group, params, nans, buffers, torch.tensor(1.0))
    found["skipped"] = difference(ours, before)
    return found


def moving_averages():
    """Differences between the kernel and torch's lerp, by case; zero if they must be equal."""
    found = {}
    for momentum, skipped in (
        (0.3, None),
        (0.996, torch.tensor(0.0)),
        (torch.tensor(0.996, dtype=torch.float64), torch.tensor(0.0)),
        (torch.tensor(0.0), None),
        (1.0, torch.tensor(0.0)),
        (0.3, torch.tensor(1.0)),
        (torch.tensor(0.3), torch.tensor(1.0)),
    ):
        ours, theirs, values = weights(), weights(), gradients(2)
        values[0] = values[0].contiguous(memory_format=torch.channels_last)
        moves = 0.0 if skipped is not None and skipped else 1.0
        torch._foreach_lerp_(theirs, values, moves * (1 - float(momentum)))
        if not moves:
            values = [torch.full_like(v, torch.inf) for v in values]
        launch_moving_average(ours, values, momentum, skipped)
        case = f"{type(momentum).__name__} {float(momentum)} {skipped}"
        if moves and float(momentum) not in (0.0, 1.0):
            found[case] = difference(ours, theirs)
        else:
            found[case] = 0.0 if all(map(torch.equal, ours, theirs)) else 1.0
    return found


def compiled():
    """What each launch was compiled to."""
    from tests.views.compiled import compile_only

    found: list[dict] = []
    JITFunction.run = compile_only(found)
    flag, lr = torch.tensor(0.0), torch.tensor(0.3)
    for variant, adapt in product(VARIANTS, (True, False)):
        group = SETTINGS | {"variant": variant, "adapt": adapt, "lr": lr}
        for some in (weights(), weights()[4:6], weights()[1:2]):
            launch_lars(group, some, some, some, flag)
    for momentum in (0.99, torch.tensor(0.99, dtype=torch.float64)):
        for some in (weights(), weights()[4:6], weights()[1:2]):
            launch_moving_average(some, some, momentum, flag)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(compiled()))
