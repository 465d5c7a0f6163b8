"""Measure the time to full speed in new processes: with an empty compile cache, then a full one.

`python -m selfsight.bench.first_step JSON` is such a process; it prints a line of JSON.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from selfsight.errors import UserError
from selfsight.garbage_collection import frozen_imports
from selfsight.stopwatch import Stopwatch, process_began


def measure_first_step(
    recipe: str,
    data: str,
    device: str,
    *,
    batch_size: int,
    flags: Sequence[str],
    seconds: float,
) -> dict[str, dict[str, Any]]:
    """Train for some steps in two processes, which share a compile cache: "cold" and "warm"."""
    given = {
        "recipe": recipe,
        "data": data,
        "device": device,
        "batch_size": batch_size,
        "flags": list(flags),
        "seconds": seconds,
    }
    with tempfile.TemporaryDirectory(prefix="selfsight-compiled-") as cache:
        folders = {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": f"{cache}/triton"}
        return {name: _run_process(given, os.environ | folders) for name in ("cold", "warm")}


def _run_process(given: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    from selfsight.data.decoders.decode_workers import inherited_path  # imports torch

    command = [sys.executable, "-P", "-m", "selfsight.bench.first_step", json.dumps(given)]
    done = subprocess.run(
        command, env=environment | inherited_path(), capture_output=True, text=True
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise UserError(f"A process that measures the first step failed: {lines[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def run_steps(given: dict[str, Any]) -> dict[str, Any]:
    """Seconds of this process until the first step and until full speed, and that speed."""
    clock = Stopwatch(process_began())
    with frozen_imports():
        import torch

        from selfsight.bench.step_breakdown import time_training
        from selfsight.bench.timer import peak_memory
        from selfsight.catalog import build_recipe
        from selfsight.device import adapt_to_device
        from selfsight.recipe import override
        from selfsight.runs.open_run_images import (
            open_recipe_images,
            open_recipe_source,
            resolve_storage,
        )
        from selfsight.train.cudnn_and_determinism import configure_torch
        from selfsight.train.prepare_kernels import prepare_kernels

    clock.lap("imports")
    device = torch.device(given["device"])
    recipe = build_recipe(given["recipe"])
    recipe = override(recipe, {"batch_size": given["batch_size"]}, given["flags"], command="bench")
    if device.type == "cuda":
        recipe = replace(recipe, compile=True)
    recipe, _ = adapt_to_device(recipe, device)
    recipe = replace(recipe, data=replace(recipe.data, path=given["data"]))
    configure_torch(recipe, device)
    with prepare_kernels(recipe, device, clock):
        source = open_recipe_source(recipe)
        recipe, _ = resolve_storage(recipe, source, device)
        images = open_recipe_images(recipe, device, None, source)
    clock.lap("data")
    speed = time_training(recipe, images, device, given["seconds"], compile_ahead=True)
    before = sum(clock.seconds[phase] for phase in ("imports", "data", "kernels"))
    return {
        "imports": round(clock.seconds["imports"], 2),
        "data": round(clock.seconds["data"], 2),
        "kernels": round(clock.seconds["kernels"], 2),
        "first_step": round(before + speed.first_step, 2),
        "full_speed": round(before + speed.full_speed, 2),
        "images_per_second": 1000 * recipe.batch_size / speed.ms,
        "step_mode": speed.step_mode,
        "compiled": speed.compiled,
        "memory": peak_memory(device),
        "compile": _compile_seconds(),
    }


def _compile_seconds() -> dict[str, float]:
    """Seconds of torch's compiler by part, the longest first; parts contain each other."""
    if "torch._dynamo.utils" not in sys.modules:
        return {}
    from torch._dynamo.utils import calculate_time_spent

    spent = sorted(calculate_time_spent().items(), key=lambda item: -item[1])
    return {name: round(seconds, 2) for name, seconds in spent if seconds >= 0.05}


if __name__ == "__main__":
    print(json.dumps(run_steps(json.loads(sys.argv[1]))))
