from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selfsight.run_folder import Run
from tests.report import folders


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    """Make finished runs beside each other."""

    def make(folder: str = "r1", **parts: Any) -> Run:
        return folders.make_run(tmp_path / folder, **parts)

    return make
