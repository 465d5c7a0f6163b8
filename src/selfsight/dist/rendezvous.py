"""Bring the processes of a run together; find those that are missing, different or stopped."""

import functools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from selfsight.check_settings import POSITIVE, check_setting
from selfsight.errors import RunError, UserError, list_first
from selfsight.version import __version__

VARIABLE = "SELFSIGHT_DIST_TIMEOUT"
TIMEOUT = 3600.0  # seconds that a process waits for another in an exchange
START_TIMEOUT = 300.0  # seconds that it waits for another to start
NOTICE_AFTER = 10.0  # seconds after which it says what it waits for
LINGER = 5.0  # seconds that the host of the store stays, so that others learn why a run ended
POLL = 0.05  # seconds
FAILED, LEFT = "failed", "left"  # keys of the store
Result = TypeVar("Result")


class Place(NamedTuple):
    """What the variables of torchrun say about this process."""

    rank: int
    world_size: int
    host: str
    port: int

    @property
    def is_host(self) -> bool:
        """Whether this process holds the store; torchrun holds it itself."""
        return self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


class Members(NamedTuple):
    """The processes that have joined, and the store through which they talk."""

    place: Place
    store: dist.PrefixStore
    keys: str  # prefix of the keys of this group
    names: list[str]  # number and machine of each process

    def describe(self, rank: int) -> str:
        """Name a process: its rank, number and machine."""
        return f"process {rank} of {self.place.world_size} ({self.names[rank]})"


def timeout() -> float:
    """Return the seconds that a process waits for another, from the environment if given."""
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or TIMEOUT)
    except ValueError:
        raise UserError(f'{VARIABLE} is "{text}". Give a number of seconds, such as 600.') from None
    check_setting(VARIABLE, seconds, float, POSITIVE)
    return seconds


def find_place() -> Place | None:
    """Read RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; None for a single process."""
    if "WORLD_SIZE" not in os.environ:
        return None
    world_size = read_integer("WORLD_SIZE", 1)
    if world_size == 1:
        return None
    rank = read_integer("RANK", 0, world_size - 1)
    host = os.environ.get("MASTER_ADDR")
    if not host:
        raise UserError(
            f"WORLD_SIZE is {world_size}, but MASTER_ADDR is not set. Set it to the machine of the "
            "process with RANK 0 (127.0.0.1 for this one), or start with torchrun."
        )
    return Place(rank, world_size, host, read_integer("MASTER_PORT", 1, 65535))


def read_integer(name: str, low: int, high: int | None = None) -> int:
    """Read a variable of the environment that is a whole number within these bounds."""
    text = os.environ.get(name, "")
    if text.isdecimal() and low <= int(text) and (high is None or int(text) <= high):
        return int(text)
    range_ = f"of at least {low}" if high is None else f"from {low} to {high}"
    state = f'is "{text}"' if text else "is not set"
    raise UserError(
        f"{name} {state}, but a process of several needs a whole number {range_}. torchrun sets "
        "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; without it, set them for each process."
    )


def join(place: Place, settings: Mapping[str, Any]) -> Members:
    """Wait until every process has joined; raise an error that names a missing or different one.

    `settings` must be equal in all processes.
    """
    seconds = min(timeout(), START_TIMEOUT)
    deadline = time.monotonic() + seconds
    try:
        members, all_settings = run_within(seconds + 2, lambda: _meet(place, settings, deadline))
    except TimeoutError:
        raise RunError(_describe_unreachable(place)) from None
    difference = describe_difference(all_settings, members.describe)
    if difference is not None:
        report_failure(members, difference)
        leave(members)
        raise UserError(difference)
    return members


def _meet(
    place: Place, settings: Mapping[str, Any], deadline: float
) -> tuple[Members, list[dict[str, Any]]]:
    """Join, and wait for the others; also return the settings of each."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = _connect(place, deadline)
    # After a restart torchrun's store still has what the processes that ended wrote.
    store = dist.PrefixStore(f"attempt_{attempt}", store)  # type: ignore[attr-defined]
    own = f"pid {os.getpid()} on {socket.gethostname()}"
    other = store.compare_set(f"process/{place.rank}", "", own).decode()
    if other != own:
        raise UserError(
            f"Two processes have RANK {place.rank} at {place.host}:{place.port}: {other}, and "
            f"{own}. Give each its own RANK, and each job its own MASTER_PORT."
        )
    # A process may join again when it has left, for example to evaluate the next run.
    keys = f"group_{store.add(f'joins/{place.rank}', 1)}"
    versions = {"selfsight": __version__, "torch": torch.__version__}
    own_settings = {"WORLD_SIZE": place.world_size} | versions | dict(settings)
    store.set(f"{keys}/{place.rank}", json.dumps([own, own_settings], default=str))
    answers = [json.loads(answer) for answer in _collect(place, store, keys, deadline)]
    names, all_settings = map(list, zip(*answers, strict=True))
    return Members(place, store, keys, names), all_settings


def describe_difference(settings: list[dict[str, Any]], describe: Any) -> str | None:
    """Name what differs between the first process and another; None if nothing does."""
    for rank, theirs in enumerate(settings):
        texts = [
            f"{name} is {settings[0].get(name)} in {describe(0)} and {theirs.get(name)} in "
            f"{describe(rank)}"
            for name in {**settings[0], **theirs}
            if settings[0].get(name) != theirs.get(name)
        ]
        if texts:
            return f"All processes of a run need equal settings, but {list_first(texts, 3, '; ')}."
    return None


def report_failure(members: Members, sentence: str) -> None:
    """Tell the others why this process ends; the first reason counts."""
    _report(members, f"{members.describe(members.place.rank)} has ended: {sentence}")


def explain_loss(members: Members, error: BaseException) -> str:
    """Say why the connection to another process was lost, as far as can be known."""
    key, store = f"{members.keys}/{FAILED}", members.store
    deadline = time.monotonic() + LINGER
    while time.monotonic() < deadline:  # a process that was killed is not gone at once
        reason = call_within(
            LINGER, lambda: store.get(key).decode() if store.check([key]) else None
        )
        if reason is not None:
            return capitalize(reason)
        for rank in range(members.place.world_size):
            if _is_gone(members.names[rank]):
                who = members.describe(rank)
                reason = f"{who} has ended without a reason: it was killed, or stopped by a signal."
                _report(members, reason)
                return capitalize(reason)
        time.sleep(POLL)
    text = " ".join(str(error).split())[:200]
    return (
        f"Another process ended or did not answer for {timeout():g} s. Its own message says why. "
        f"If it needs longer, set {VARIABLE} to more seconds. ({text})"
    )


def _report(members: Members, text: str) -> None:
    call_within(LINGER, lambda: members.store.compare_set(f"{members.keys}/{FAILED}", "", text))


def leave(members: Members) -> None:
    """Leave; the process that holds the store stays a little, until the others have left too."""
    key, store = f"{members.keys}/{LEFT}", members.store

    def wait() -> None:
        count = store.add(key, 1)
        while members.place.is_host and count < members.place.world_size:
            time.sleep(POLL)
            count = store.add(key, 0)

    call_within(LINGER, wait)


def call_within(seconds: float, function: Callable[[], Result]) -> Result | None:
    """Call a function of the store; None if the store does not answer in time, or is gone."""
    try:
        return run_within(seconds, function)
    except (RuntimeError, TimeoutError):  # torch's DistError
        return None


def run_within(seconds: float, function: Callable[[], Result]) -> Result:
    """Call a function that may wait forever; raise TimeoutError if it takes longer."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:  # raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=call, name="store", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]


def capitalize(sentence: str) -> str:
    """Return the sentence with a capital first letter."""
    return sentence[:1].upper() + sentence[1:]


def _describe_unreachable(place: Place) -> str:
    return (
        f"Process {place.rank} of {place.world_size} could not reach the process with RANK 0 at "
        f"{place.host}:{place.port} within {min(timeout(), START_TIMEOUT):g} s. Is it started? "
        "MASTER_ADDR and MASTER_PORT must be the same for all, and not used by another program."
    )


@functools.cache  # one store for the life of the process: its port is not free at once
def _open_store(host: str, port: int, is_host: bool, seconds: float) -> Any:
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=is_host, timeout=timedelta(seconds=seconds), wait_for_workers=False
    )


def _connect(place: Place, deadline: float) -> Any:
    """Open the store of the run, or connect to it."""
    where, noticed = f"{place.host}:{place.port}", False
    while True:
        seconds = max(0.1, min(NOTICE_AFTER, deadline - time.monotonic()))
        try:
            return _open_store(place.host, place.port, place.is_host, seconds)
        except RuntimeError as error:  # torch's DistError
            text = str(error)
            if place.is_host:
                taken = "EADDRINUSE" in text or "in use" in text
                raise UserError(
                    f"The port of {where} (MASTER_PORT) is in use by another program. Give all "
                    "processes of this run another MASTER_PORT."
                    if taken
                    else f"Cannot listen at {where} (MASTER_ADDR and MASTER_PORT): {text[:200]}"
                ) from error
            if time.monotonic() >= deadline:
                raise RunError(_describe_unreachable(place)) from error
        noticed = noticed or _notice(f"Waiting for the process with RANK 0 at {where} ...")


def _collect(place: Place, store: Any, keys: str, deadline: float) -> list[bytes]:
    """Wait for the name and settings of each process."""
    began, noticed, failed = time.monotonic(), False, f"{keys}/{FAILED}"
    while True:
        missing = [r for r in range(place.world_size) if not store.check([f"{keys}/{r}"])]
        if not missing:
            return store.multi_get([f"{keys}/{rank}" for rank in range(place.world_size)])
        if store.check([failed]):
            raise RunError(capitalize(store.get(failed).decode()))
        ranks = list_first([str(rank) for rank in missing])
        if time.monotonic() >= deadline:
            raise RunError(
                f"WORLD_SIZE is {place.world_size}, but no process with RANK {ranks} has joined "
                f"at {place.host}:{place.port} within {min(timeout(), START_TIMEOUT):g} s. Its "
                "own message may say why. Start all processes, or correct WORLD_SIZE."
            )
        if time.monotonic() - began > NOTICE_AFTER and not noticed:
            noticed = _notice(f"Waiting for RANK {ranks} of {place.world_size} processes ...")
        time.sleep(POLL)


def _notice(sentence: str) -> bool:
    print(sentence, file=sys.stderr, flush=True)
    return True


def _is_gone(name: str) -> bool:
    """Return whether this is a process of this machine that has ended."""
    _, pid, _, host = name.split(" ", 3)
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except ProcessLookupError:
        return True
    except OSError:  # another user's, or no /proc
        return False
