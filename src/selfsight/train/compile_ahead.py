"""Compile in a second process while uncompiled steps already run.

The first run of a network on a machine would otherwise wait for the compiler, a minute or more. The
second process runs one step on random images and ends; then the compile cache has all code, and the
run compiles in seconds and continues with it. `python -m selfsight.train.compile_ahead` is that
process; it imports the compiler and waits for JSON on standard input.
"""

import contextlib
import gc
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from selfsight import dist
from selfsight.data.decoders.decode_workers import inherited_path
from selfsight.methods import DataInfo
from selfsight.outside_code import list_outside_code, locate_code
from selfsight.recipe import Recipe, from_dict, to_dict
from selfsight.train.compile import is_compiled
from selfsight.version import __version__

NICENESS = 10  # of the second process: loading images comes first


class CompileAhead:
    """The second process of a run, if it needs one; `step` is the first that ran compiled."""

    def __init__(self, recipe: Recipe, data: DataInfo, device: torch.device) -> None:
        self.recipe, self.data, self.device = recipe, data, device
        self.step: int | None = None
        self.began: float | None = None  # when the second process began to compile
        self.seconds = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self.errors: Any = None
        self.why_not = "there was no memory to compile meanwhile"

    def is_needed(self) -> bool:
        """Whether the run compiles on one GPU, code is not cached, and numbers may depend on it."""
        recipe = self.recipe
        saves_memory = recipe.chunk is not None or recipe.activation_checkpointing
        return (
            is_compiled(recipe, self.device)
            and dist.world_size() == 1
            and not recipe.repeatable
            and not saves_memory
            and not _mark(recipe, self.data, self.device).exists()
        )

    def start(self) -> None:
        """Start the second process, which imports the compiler and waits; call it before a step.

        Imports take seconds, and the first step too.
        """
        # The memory of what the device did before, such as steps that were tried, counts no more.
        torch.cuda.reset_peak_memory_stats(self.device)
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  # read if the process fails
        try:
            self.process = start_process(self.errors)
        except OSError as error:  # for example too many processes
            self.why_not = f"no process could be started ({error})"

    def compile(self) -> None:
        """Let the second process compile if the memory of the GPU is enough for both; else end it.

        Call it after a step: as much memory as that took is needed for the second process, and
        again to record a CUDA graph. And cuDNN has timed the run's own convolutions by then.
        """
        if self.process is None:
            return
        free, total = torch.cuda.mem_get_info(self.device)
        step = torch.cuda.max_memory_reserved(self.device)
        if free < 2 * step:
            self._end()  # is_running() is False, so that the run compiles by itself
            return
        self.began = time.monotonic()
        settings = to_dict(self.recipe)
        outside = locate_code(list_outside_code(settings))
        given = {
            "recipe": settings | {"outside_code": outside},
            "data": self.data._asdict(),
            "device": str(self.device),
            "memory": (free - step) / total,
        }
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as file:  # it may have ended
            file.write(json.dumps(given).encode())

    def is_running(self) -> bool:
        """Whether the second process still compiles."""
        return self.process is not None and self.process.poll() is None

    def finish(self, step: int) -> None:
        """Note the step from which on compiled code is used."""
        self.step = step
        if self.began is None:
            self._end()
        else:
            self.seconds = time.monotonic() - self.began

    def describe(self) -> str:
        """One or two sentences on what happened."""
        text = f"Steps are compiled from step {self.step} on"
        if self.process is None:
            return f"{text}: {self.why_not}."
        if self.process.returncode:
            self.errors.seek(0)
            lines = self.errors.read().decode(errors="replace").strip().splitlines()
            return f"{text}. Compiling meanwhile failed: {lines[-1] if lines else 'no output'}"
        return (
            f"{text}; the compiler took {self.seconds:.0f} s meanwhile. Numbers depend on that "
            "step; with --repeatable a run waits for the compiler."
        )

    def note_compiled(self) -> None:
        """Note for later runs that the cache has the code, also if the second process failed."""
        write_mark(self.recipe, self.data, self.device)

    def close(self) -> None:
        """End the second process."""
        self._end()
        if self.errors is not None:
            self.errors.close()

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def start_process(errors: Any) -> "subprocess.Popen[bytes]":
    """Start a process that fills the compile cache once it gets JSON; errors go to this file."""
    return subprocess.Popen(
        # -P: import nothing from the current folder, which may hold untrusted files.
        [sys.executable, "-P", "-m", "selfsight.train.compile_ahead"],
        env=os.environ | inherited_path(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=errors,
    )


def _mark(recipe: Recipe, data: DataInfo, device: torch.device) -> Path:
    """A file in the compile cache whose name is a hash of what decides the compiled code."""
    settings = to_dict(recipe)
    decisive = {k: settings[k] for k in ("method", "backbone", "batch_size", "precision")}
    decisive |= {"compile_blocks": recipe.compile_blocks, "freeze": recipe.start.freeze}
    decisive["views"] = [view.size for view in recipe.views]
    decisive["classes"] = data.num_classes if recipe.method.needs_labels else None
    decisive["gpu"] = torch.cuda.get_device_name(device)
    decisive["versions"] = [__version__, torch.__version__]
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    return Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "selfsight" / digest[:16]


def write_mark(recipe: Recipe, data: DataInfo, device: torch.device) -> None:
    """Note that the compile cache has the code of this recipe."""
    mark = _mark(recipe, data, device)
    with contextlib.suppress(OSError):  # for example a full disk: it is compiled once more
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def compile_step(given: dict[str, Any]) -> None:
    """Run one compiled step on random images, so that the compile cache has its code; note it."""
    from selfsight.train.trial_steps import run_one_step  # imports the loop, which imports this

    device = torch.device(given["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)
        torch.cuda.set_per_process_memory_fraction(given["memory"])
        # Do not time convolutions: compiled code does not depend on which ones cuDNN chooses.
        torch.backends.cudnn.benchmark_limit = 1
    # The run that started this process has imported the same code.
    recipe, data = from_dict(given["recipe"], trust=True), DataInfo(**given["data"])
    run_one_step(recipe, device, data)
    if is_compiled(recipe, device):
        write_mark(recipe, data, device)


if __name__ == "__main__":
    os.nice(NICENESS)
    gc.disable()  # looking for garbage takes a tenth of compiling, and the process ends soon
    importlib.import_module("selfsight.train.trial_steps")
    importlib.import_module("torch._inductor.compile_fx")
    if text := sys.stdin.read():  # nothing if the run has ended
        compile_step(json.loads(text))
