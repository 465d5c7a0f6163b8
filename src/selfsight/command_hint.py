"""Write the next command for a run, for hints."""

import contextlib
from collections.abc import Mapping
from typing import Any

from selfsight.data import find_url
from selfsight.errors import UserError
from selfsight.outside_code import list_outside_code
from selfsight.run_files.run_folder import Run


def write_command(command: str, run: Run, *arguments: str) -> str:
    """Write a command on this run that can be copied to a shell, with the `--trust` it needs."""
    saved: Mapping[str, Any] = {}
    with contextlib.suppress(UserError, OSError):  # a folder that is gone: the hint must not fail
        saved = run.saved_recipe()
    reads_images = "--labeled" not in arguments
    needs_trust = list_outside_code(saved) or (reads_images and _names_network(saved))
    words = ("selfsight", command, run.shell_path, *arguments)
    return " ".join((*words, "--trust") if needs_trust else words)


def _names_network(saved: Mapping[str, Any]) -> bool:
    data = saved.get("data")
    path = data.get("path") if isinstance(data, Mapping) else None
    return isinstance(path, str) and find_url(path) is not None
