"""The HTML report of a run folder; imports no torch."""

from selfsight.report_page.page import summary, write

__all__ = ["summary", "write"]
