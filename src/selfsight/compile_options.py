"""Options of torch.compile for networks, losses, and the bench's limit of speed."""

from typing import Any

COMPILE_OPTIONS: dict[str, Any] = {
    # Compile for exact shapes: code for any batch size would be slower, and a run has one.
    "dynamic": False,
    # Merge small independent kernels, such as the batch norms of several groups.
    "options": {"combo_kernels": True},
}
