"""Join the process group, and leave it: NCCL or gloo, with a sentence when another process ends."""

import contextlib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist

from selfsight.dist.collectives import local_rank, world_size
from selfsight.dist.heartbeat import GRACE, Heartbeat
from selfsight.dist.rendezvous import explain_loss, find_place, join, leave, report_failure, timeout
from selfsight.errors import RunError, describe_failure, is_lost_connection, is_timeout

NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


@contextlib.contextmanager
def process_group(device: str, settings: Mapping[str, Any] = NO_SETTINGS) -> Iterator[None]:
    """Join the process group, if several processes were started, and leave it at the end.

    All must have the same settings. When one process fails or no longer answers, all
    others exit with a message that says so.
    """
    place = None if dist.is_initialized() else find_place()
    if place is None:
        yield
        return
    if device == "cuda":
        torch.cuda.set_device(local_rank())
    members = join(place, {"device": device, **settings})
    try:
        with Heartbeat(members) as watch:
            try:
                dist.init_process_group(
                    "nccl" if device == "cuda" else "gloo",
                    store=dist.PrefixStore(members.keys, members.store),  # type: ignore[attr-defined]
                    rank=place.rank,
                    world_size=place.world_size,
                    timeout=timedelta(seconds=timeout()),
                )
                yield
            except Exception as error:
                if is_lost_connection(error):
                    seconds = min(watch.silence, GRACE)
                    reason = watch.find_reason(seconds) if is_timeout(error) else None
                    raise RunError(reason or explain_loss(members, error)) from error
                report_failure(members, describe_failure(error))
                raise
            finally:
                if dist.is_initialized():
                    dist.destroy_process_group()
    finally:
        leave(members)


def cpu_group() -> dist.ProcessGroup | None:
    """Return a group for tensors on the CPU; None if that of all processes serves them."""
    if world_size() == 1 or dist.get_backend() == "gloo":
        return None
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout()))
