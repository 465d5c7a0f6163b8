"""A tab of a real browser that is cut off from any network."""

from pathlib import Path

from playwright.sync_api import Browser
from playwright.sync_api import Page as Tab

from selfsight import report_page
from selfsight.run_files.run_folder import Run


class Window:
    """A tab that shows one page after another, and what they asked for or complained about."""

    def __init__(self, browser: Browser) -> None:
        self.context = browser.new_context(offline=True)
        self.complaints: list[str] = []
        self.address = ""
        self.tab = tab = self.context.new_page()
        tab.on("console", lambda message: self._note(message.text))
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        tab.on("request", lambda r: r.url == self.address or self.complaints.append(r.url))

    def _note(self, text: str) -> None:
        if "GL Driver Message" not in text:  # of software rendering, on its own speed
            self.complaints.append(text)

    def open(self, run: Run, scheme: str = "light") -> Tab:
        self.open_file(report_page.write(run), scheme)
        self.tab.wait_for_function("document.querySelectorAll('.body:empty').length === 0")
        return self.tab

    def open_file(self, page: Path, scheme: str = "light") -> Tab:
        self.tab.set_viewport_size({"width": 1200, "height": 800})
        self.tab.emulate_media(color_scheme=scheme)
        self.address = page.as_uri()
        self.tab.goto(self.address)
        return self.tab
