"""The HTML report of a run folder; imports no torch."""

from selfsight.report_page.page import build, summary, write

__all__ = ["build", "summary", "write"]
