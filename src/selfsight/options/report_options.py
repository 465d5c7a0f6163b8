"""Options of `selfsight report`."""

from dataclasses import dataclass

from selfsight.check_settings import check_settings
from selfsight.errors import UserError
from selfsight.options.option_types_and_ranges import RANGES, Device, File


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Options of `selfsight report`, which are also keywords of `selfsight.report`.

    >>> options = selfsight.ReportOptions(serve=True, port=8000)
    """

    out: File = None
    """File to write. If not given, RUN/report.html, or comparison.html beside several runs."""
    serve: bool = False
    """Serve the page on this machine (127.0.0.1) until Ctrl-C. Drop an image of your own on it to
    see the most similar images of the run."""
    port: int = 0
    """Port of --serve; 0 is any free one."""
    device: Device = "auto"
    """--serve: auto, cpu or cuda."""
    trust: bool = False
    """--serve: allow the recipe of the run to run code from outside selfsight, and to read images
    from a network. Use it only if you trust its author."""

    def __post_init__(self) -> None:
        check_settings(self, "", RANGES)
        for name, default in (("port", 0), ("device", "auto"), ("trust", False)):
            if getattr(self, name) != default and not self.serve:
                raise UserError(
                    f"--{name} is for a page that is served. Add --serve, or leave it out."
                )


REPORT_DEFAULTS = ReportOptions()
