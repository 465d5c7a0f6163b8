"""Memory and CPUs are limited by the container."""

import os

import pytest

from selfsight.data import cgroup_limits

GROUPS = {
    "version 2": {
        "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/pod/memory.max": "4000\n",
        "sys/fs/cgroup/pod/memory.current": "3000\n",
        "sys/fs/cgroup/pod/memory.stat": "anon 2500\ninactive_file 500\n",
        "sys/fs/cgroup/pod/box/memory.max": "max\n",
        "sys/fs/cgroup/pod/box/memory.current": "3000\n",
        "sys/fs/cgroup/pod/box/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/pod/cpu.max": "max 100000\n",
    },
    "version 1, as a container sees it": {
        "proc/self/cgroup": "4:memory:/docker/0a\n2:cpu,cpuacct:/docker/0a\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "4000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "3000\n",
        "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 500\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "20000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    },
}


def write_files(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("version", GROUPS)
def test_memory_and_cpus_are_limited_by_the_container(version, tmp_path, monkeypatch):
    monkeypatch.setattr(cgroup_limits, "ROOT", write_files(tmp_path, GROUPS[version]))
    assert cgroup_limits.free_memory() == 1500  # what is cached from files is given back
    assert cgroup_limits.available_cpus() == 1


def test_the_cpu_limit_is_rounded_up_and_at_most_the_number_of_cpus(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroup_limits, "ROOT", tmp_path)
    for limit, expected in (("250000 100000", 3), ("1 100000", 1), ("max 100000", None)):
        write_files(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": limit})
        assert cgroup_limits.cpu_limit() == expected
    write_files(tmp_path, {"sys/fs/cgroup/cpu.max": "900000000 1000"})
    assert cgroup_limits.available_cpus() == len(os.sched_getaffinity(0))


def test_without_cgroups_there_is_no_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroup_limits, "ROOT", tmp_path)
    assert cgroup_limits.memory_left() is None and cgroup_limits.cpu_limit() is None
    write_files(tmp_path, {"proc/self/cgroup": "4:memory:/\n0::/\n"})
    write_files(tmp_path, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"})
    write_files(tmp_path, {"sys/fs/cgroup/memory/memory.usage_in_bytes": "3000"})
    assert cgroup_limits.free_memory() == pytest.approx(cgroup_limits._system_memory(), rel=0.2)
