"""The HTML report of a run folder; imports no torch."""

from selfsight.report_page.page import build, summary, write
from selfsight.report_page.several_runs import write_several

__all__ = ["build", "summary", "write", "write_several"]
