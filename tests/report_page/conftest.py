from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Any]:
    """Make finished runs beside each other."""
    from tests.report_page import folders  # imports selfsight, which must be checked

    def make(folder: str = "r1", **parts: Any) -> Any:
        return folders.make_run(tmp_path / folder, **parts)

    return make
