"""How torch's compiler is asked for code: networks, losses and the limits they stand beside."""

from typing import Any

COMPILE_OPTIONS: dict[str, Any] = {
    # Shapes are taken as they come: code for any batch size would be slower, and there is one.
    "dynamic": False,
    # Small kernels that do not depend on each other become one: batch norms of several groups.
    "options": {"combo_kernels": True},
}
