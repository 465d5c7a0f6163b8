"""The limits of a container are this process's own."""

import os

import pytest

from selfsight.data import cgroup_limits, decode_threads, pixel_cache

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


def made(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("version", GROUPS)
def test_memory_and_cores_are_those_of_the_container(version, tmp_path, monkeypatch):
    monkeypatch.setattr(cgroup_limits, "ROOT", made(tmp_path, GROUPS[version]))
    assert pixel_cache.free_memory() == 1500  # what is cached from files is given back
    assert decode_threads.num_workers() == 1


def test_a_part_of_a_core_counts_as_one_and_no_more_than_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroup_limits, "ROOT", tmp_path)
    for told, expected in (("250000 100000", 3), ("1 100000", 1), ("max 100000", None)):
        made(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": told})
        assert cgroup_limits.processors() == expected
    made(tmp_path, {"sys/fs/cgroup/cpu.max": "900000000 1000"})
    assert decode_threads.num_workers() == len(os.sched_getaffinity(0))


def test_without_groups_nothing_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroup_limits, "ROOT", tmp_path)
    assert cgroup_limits.memory_left() is None and cgroup_limits.processors() is None
    made(tmp_path, {"proc/self/cgroup": "4:memory:/\n0::/\n"})
    made(tmp_path, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"})
    made(tmp_path, {"sys/fs/cgroup/memory/memory.usage_in_bytes": "3000"})
    assert pixel_cache.free_memory() == pytest.approx(pixel_cache._available(), rel=0.2)
