import shutil
from collections.abc import Callable, Iterator
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no browser: install Debian's chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--headless"]
        started = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield started
        started.close()
