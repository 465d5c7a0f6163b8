"""Options of torch.compile for networks, losses, and the bench's limit of speed."""

from typing import Any

COMPILE_OPTIONS: dict[str, Any] = {
    # Compile for exact shapes: code for any batch size would be slower, and a run has one.
    "dynamic": False,
    # Merge small independent kernels, such as the batch norms of several groups.
    # Do not look for parts that could be recorded as CUDA graphs: whole steps are recorded.
    "options": {"combo_kernels": True, "graph_partition": False},
}

MAX_COMPILED = 512  # versions of one function in a process


def allow_many_versions() -> None:
    """Let torch compile a function for many networks, shapes and settings.

    By default it stops after eight, which is too few for the runs of a study or losses used alone.
    """
    import torch._dynamo.config as dynamo_config  # takes seconds

    dynamo_config.recompile_limit = max(dynamo_config.recompile_limit, MAX_COMPILED)
    dynamo_config.accumulated_recompile_limit = max(
        dynamo_config.accumulated_recompile_limit, 4 * MAX_COMPILED
    )
