"""Run the cases of a fuzzer, each in a process of its own, and tell which of them failed.

`make check` runs a few cases of each fuzzer and `make fuzz` all of them. Set SELFSIGHT_FUZZ to a
number for another count or to a range such as 50:100 for a part of all, and SELFSIGHT_FUZZ_SEED for
other random numbers.
"""

import contextlib
import gc
import itertools
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from selfsight.errors import StoppedError

ACCEPTED = "The settings are accepted: training has begun."
STOPPED = 128 + signal.SIGTERM  # status of a case that was stopped so
SEED = int(os.environ.get("SELFSIGHT_FUZZ_SEED", "0"))
GIB = 2**30


def pick_cases(cases: Sequence[Any], *, few: int, full: int) -> list[Any]:
    """All cases in `make fuzz` (at least `full`), else a few that the seed chooses."""
    wanted = os.environ.get("SELFSIGHT_FUZZ", "")
    if wanted == "full":
        assert len(cases) >= full, f"{len(cases)} cases, and {full} were promised"
        return list(cases)
    if ":" in wanted:
        first, end = map(int, wanted.split(":"))
        return list(cases[first:end])
    count = min(int(wanted or few), len(cases))
    return random.Random(SEED).sample(list(cases), count)


@dataclass(frozen=True)
class Outcome:
    """How a case ended."""

    status: int  # of the process
    output: str
    seconds: float
    gigabytes: float  # that the process came to hold
    failure: str | None  # traceback, bug, hang, signal or memory

    @property
    def said(self) -> str:
        """What was printed, in one line and without the frames around it."""
        return " ".join("".join(c for c in self.output if c not in "│╭╮╰╯─").split())


def stop_after(steps: int) -> None:
    """Let training stop after a few steps, as by a signal: a case need not wait for its end."""
    from selfsight.train import pretrain

    train = pretrain.train

    def train_a_little(*args: Any, **settings: Any) -> Iterator[Any]:
        yield from itertools.islice(train(*args, **settings), steps)
        raise StoppedError(ACCEPTED, signal.SIGTERM)

    pretrain.train = train_a_little


def run_case(
    function: Callable[..., object], *args: Any, seconds: float = 30, gigabytes: float = 2
) -> Outcome:
    """Call a function in a forked process, with limits of time and of memory beyond this one's."""
    with tempfile.TemporaryFile() as file:
        begun = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _run_and_exit(function, args, file.fileno(), gigabytes)
        late, status, usage = _wait(pid, begun + seconds)
        file.seek(0)
        output = file.read().decode(errors="replace")
    code = os.waitstatus_to_exitcode(status)
    held = usage.ru_maxrss / 2**20
    if late:
        failure = f"hang: over {seconds} s"
    elif code < 0:
        failure = f"signal {-code}"
    elif "Traceback (most recent call last)" in output:
        failure = "traceback"
    elif "This is a bug in selfsight" in output:
        failure = "bug"
    elif held > gigabytes + _resident_gigabytes():
        failure = f"memory: {held:.1f} GiB"
    else:
        failure = None
    return Outcome(code, output, time.monotonic() - begun, held, failure)


def assert_none_failed(
    name: str,
    cases: Sequence[Any],
    check: Callable[[Any], str | None],
    record_property: Callable[[str, object], None],
) -> None:
    """Check every case (None: it held), record the count, and show the first that failed."""
    failed = []
    for number, case in enumerate(cases, start=1):
        reason = check(case)
        if reason is not None:
            failed.append(f"{case!r:.300}: {reason[-1500:]}")
            if os.environ.get("SELFSIGHT_FUZZ"):  # at once: the others take a while
                print(f"\n{name}: {failed[-1]}", file=sys.__stderr__, flush=True)
        if number % 100 == 0 and os.environ.get("SELFSIGHT_FUZZ"):
            print(f"{name}: {number} of {len(cases)}, {len(failed)} failed", file=sys.__stderr__)
    record_property("fuzz", f"{name}: {len(cases)} cases, {len(failed)} failed, seed {SEED}")
    assert not failed, f"{len(failed)} of {len(cases)} failed\n" + "\n".join(failed[:40])


def _run_and_exit(
    function: Callable[..., object], args: Sequence[Any], output: int, gigabytes: float
) -> None:
    os.setpgid(0, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = open(1, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115
    limit = int(_virtual_gigabytes() * GIB + gigabytes * GIB)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    gc.freeze()
    # After a fork, the first use of torch's threads makes a new pool of them: two threads that do
    # so at once end with "Invalid thread pool!".
    torch.set_num_threads(torch.get_num_threads())
    status = 0
    try:
        function(*args)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _wait(pid: int, until: float) -> tuple[bool, int, resource.struct_rusage]:
    pause = 0.002
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        late = not done and time.monotonic() > until
        if late:
            _, status, usage = _kill_group(pid)
        if done or late:
            with contextlib.suppress(ProcessLookupError):  # workers that it left behind
                os.killpg(pid, signal.SIGKILL)
            return late, status, usage
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def _kill_group(pid: int) -> tuple[int, int, resource.struct_rusage]:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return os.wait4(pid, 0)


def _resident_gigabytes() -> float:
    return _pages(1) * resource.getpagesize() / GIB


def _virtual_gigabytes() -> float:
    return _pages(0) * resource.getpagesize() / GIB


def _pages(column: int) -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[column])
