"""What a run depends on in addition to its recipe: versions, commit, device, threads, command."""

import hashlib
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from selfsight import dist
from selfsight.version import __version__

PACKAGE = Path(__file__).resolve().parents[1]
GOLDEN = PACKAGE.parents[1] / "tests/golden/traces.json"  # only in a checkout
# What to call each value in a sentence. The command may differ: it names folders.
TITLES = {
    "versions.selfsight": "selfsight",
    "versions.torch": "torch",
    "versions.python": "Python",
    "versions.cuda": "CUDA",
    "versions.cudnn": "cuDNN",
    "environment.commit": "the commit of selfsight",
    "environment.sources": "the source code of selfsight",
    "environment.cpu": "the instructions of the CPU",
    "device": "the device",
    "processes": "the number of processes",
}


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Describe versions, source code, device, processes, threads and the command."""
    code = describe_version()
    versions: dict[str, Any] = {
        "selfsight": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    if device.type == "cuda":
        versions |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return {
        "device": device_name(device),
        "processes": dist.world_size(),
        "versions": versions,
        "environment": {
            "command": _command(),
            **{name: code[name] for name in ("commit", "changed", "sources")},
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
        },
    }


def compare_environments(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name what differs; values that an older run did not record are ignored."""
    sentences = []
    for path, title in TITLES.items():
        before, after = (_get(values, path) for values in (saved, now))
        if before is not None and before != after:
            sentences.append(f"{title} was {before} and is {after}")
    return sentences


def device_name(device: torch.device) -> str:
    """Return the name of the GPU, or CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


@cache
def describe_version() -> dict[str, Any]:
    """Version, commit (None outside a checkout), and hashes of sources and golden traces."""
    sources = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        sources.update(f"{path.relative_to(PACKAGE)}\0".encode() + path.read_bytes())
    golden = hashlib.sha256(GOLDEN.read_bytes()).hexdigest()[:12] if GOLDEN.exists() else None
    return {
        "selfsight": __version__,
        "commit": _git("rev-parse", "--short=10", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no", "--", str(PACKAGE))),
        "sources": sources.hexdigest()[:12],
        "golden": golden,
    }


def _command() -> str | None:
    """The command line; None if another program called this one."""
    program, *words = sys.argv
    is_ours = Path(program).name in ("selfsight", "__main__.py")
    return shlex.join(["selfsight", *words]) if is_ours else None


def _get(values: Any, path: str) -> Any:
    for name in path.split("."):
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def _git(*words: str) -> str | None:
    """Output of git in the checkout of the package; None if there is no checkout."""
    try:
        found = subprocess.run(
            ["git", "-C", str(PACKAGE), *words], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip() or None
