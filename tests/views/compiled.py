"""The fused kernels compiled for an H100 or H200, which needs no such device.

`python -m tests.views.compiled` prints, as JSON, the bytes that each kernel spills to memory,
whether the threads of a warp lie along the last axis of every block, and how many instructions
load or store four words. All but the launch itself is Triton's own path.
"""

import json
import re
import subprocess
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from selfsight.views import byol, for_channels, moco_v3
from selfsight.views.sampling import view_keys
from selfsight.views.triton.apply import apply_fused_views
from tests.views.ragged import ragged

TARGET = GPUTarget("cuda", 90, 32)
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def compile_only(found):
    """A stand-in for the launch of a kernel that stops once its code is there."""
    backend = make_backend(TARGET)

    def run(kernel, *args, grid, warmup, **kwargs):
        binder = create_function_from_signature(kernel.signature, kernel.params, backend)
        bound, specialized, options = binder(*args, debug=False, instrumentation_mode="", **kwargs)
        options, signature, constants, attributes = kernel._pack_args(
            backend, kwargs, bound, specialized, options
        )
        source = ASTSource(kernel, signature, constants, attributes)
        made = triton.compile(source, target=TARGET, options=options.__dict__)
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(made.asm["cubin"])
            file.flush()
            usage = subprocess.run(
                [CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True
            ).stdout
        orders = re.findall(r"order = \[([^]]*)\]", made.asm["ttgir"])
        found.append(
            {
                "kernel": kernel.__name__,
                "spilled": sum(int(n) for n in re.findall(r"(?:STACK|LOCAL):(\d+)", usage)),
                "vectors": made.asm["ptx"].count(".global.v4.b32"),
                "along_rows": all(o.split(", ") == sorted(o.split(", "))[::-1] for o in orders),
            }
        )

    return run


if __name__ == "__main__":
    found: list[dict] = []
    JITFunction.run = compile_only(found)
    epoch = torch.tensor(1)
    for views, channels, dtype in (
        (moco_v3(224), 3, torch.bfloat16),
        (tuple(for_channels(v, 1) for v in byol(32)), 1, torch.float32),
    ):
        images = ragged(channels=channels)
        keys = view_keys(0, len(views))
        apply_fused_views(views, keys, images, torch.arange(3), epoch, dtype)
    print(json.dumps(found))
