"""Memory and CPUs that this process may use, within the limits of its container (Linux cgroups)."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
RECLAIMABLE = ("total_inactive_file", "inactive_file")  # page cache, freed under pressure


def free_memory() -> int:
    """Bytes that can be allocated without swapping or exceeding the container's limit."""
    free, left = _system_memory(), memory_left()
    return free if left is None else min(free, left)


def available_cpus() -> int:
    """Number of CPUs that this process may run on."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cpus = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min(cpus, cpu_limit() or cpus)


def processes_per_machine() -> int:
    """Number of training processes that torchrun started on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def cpus_per_process() -> int:
    """This process's share of the CPUs, where torchrun started several processes."""
    return max(1, available_cpus() // processes_per_machine())


def memory_left() -> int | None:
    """Bytes that the cgroups of this process still allow; None without a limit."""
    left = []
    for group in _cgroups("memory"):
        limit = _read_number(group, "memory.max", "memory.limit_in_bytes")
        used = _read_number(group, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None:
            stat = dict(line.split()[:2] for line in _read_lines(group / "memory.stat"))
            cached = next((int(stat[name]) for name in RECLAIMABLE if name in stat), 0)
            left.append(max(0, limit - used + cached))
    return min(left, default=None)


def cpu_limit() -> int | None:
    """Number of CPUs that the cgroups of this process allow, rounded up; None without a limit."""
    limits = []
    for group in _cgroups("cpu"):
        for line in _read_lines(group / "cpu.max"):  # version 2
            quota, period = line.split()
            if quota != "max":
                limits.append(int(quota) / int(period))
        quota_us = _read_number(group, "cpu.cfs_quota_us")  # version 1
        period_us = _read_number(group, "cpu.cfs_period_us")
        if quota_us is not None and period_us and quota_us > 0:
            limits.append(quota_us / period_us)
    return max(1, math.ceil(min(limits))) if limits else None


def _system_memory() -> int:
    """Bytes that the whole machine has available."""
    for line in _read_lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _cgroups(controller: str) -> Iterator[Path]:
    """This process's cgroup and its parents: each of them may set a limit."""
    mount = ROOT / "sys/fs/cgroup"
    for line in _read_lines(ROOT / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = mount / controller if controllers else mount
        names = [] if ".." in path else [name for name in path.split("/") if name]
        for depth in range(len(names), -1, -1):
            yield base.joinpath(*names[:depth])


def _read_number(group: Path, *names: str) -> int | None:
    """The number in the first of these files that exists; None if there is none or it is "max"."""
    for name in names:
        for line in _read_lines(group / name):
            return None if line == "max" else int(line)
    return None


def _read_lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
