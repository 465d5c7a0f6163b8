"""What a container lets this process take: memory and processors of Linux's control groups."""

import math
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
CACHED = ("total_inactive_file", "inactive_file")  # given back when memory is asked for


def memory_left() -> int | None:
    """Bytes that its groups still allow; None without a limit."""
    left = []
    for group in _groups("memory"):
        limit = _first(group, "memory.max", "memory.limit_in_bytes")
        used = _first(group, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None:
            stat = dict(line.split()[:2] for line in _lines(group / "memory.stat"))
            cached = next((int(stat[name]) for name in CACHED if name in stat), 0)
            left.append(max(0, limit - used + cached))
    return min(left, default=None)


def processors() -> int | None:
    """How many processors' time its groups allow, rounded up; None without a limit."""
    allowed = []
    for group in _groups("cpu"):
        for line in _lines(group / "cpu.max"):  # version 2
            quota, period = line.split()
            if quota != "max":
                allowed.append(int(quota) / int(period))
        quota_us = _first(group, "cpu.cfs_quota_us")  # version 1
        period_us = _first(group, "cpu.cfs_period_us")
        if quota_us is not None and period_us and quota_us > 0:
            allowed.append(quota_us / period_us)
    return max(1, math.ceil(min(allowed))) if allowed else None


def _groups(kind: str) -> Iterator[Path]:
    """This process's group and those around it: each may set a limit."""
    mounted = ROOT / "sys/fs/cgroup"
    for line in _lines(ROOT / "proc/self/cgroup"):
        _, kinds, path = line.split(":", 2)
        if kinds and kind not in kinds.split(","):
            continue
        base = mounted / kind if kinds else mounted
        parts = [] if ".." in path else [part for part in path.split("/") if part]
        for depth in range(len(parts), -1, -1):
            yield base.joinpath(*parts[:depth])


def _first(group: Path, *names: str) -> int | None:
    """The number in the first of these files that is there; None for "max"."""
    for name in names:
        for line in _lines(group / name):
            return None if line == "max" else int(line)
    return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
