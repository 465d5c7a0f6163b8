"""Several processes: collectives with gradients, rendezvous, heartbeats, process groups."""

from selfsight.dist.collectives import (
    all_sum,
    average_gradients,
    barrier,
    gather,
    gather_objects,
    gather_shards,
    leads,
    local_rank,
    local_rows,
    mean,
    on_first,
    prints,
    rank,
    shard,
    shard_slice,
    start_max,
    world_size,
)
from selfsight.dist.process_group import cpu_group, process_group

__all__ = [
    "all_sum",
    "average_gradients",
    "barrier",
    "cpu_group",
    "gather",
    "gather_objects",
    "gather_shards",
    "leads",
    "local_rank",
    "local_rows",
    "mean",
    "on_first",
    "prints",
    "process_group",
    "rank",
    "shard",
    "shard_slice",
    "start_max",
    "world_size",
]
