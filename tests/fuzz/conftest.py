"""The figures of the fuzzers, at the end of the tests."""

import pytest


def pytest_terminal_summary(terminalreporter):
    figures = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name == "fuzz"
    ]
    for figure in sorted(figures):
        terminalreporter.write_line(f"fuzz: {figure}")
