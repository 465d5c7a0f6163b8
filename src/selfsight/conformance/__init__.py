"""Check whether a method, of this package or from outside, keeps the contract."""

from selfsight.conformance.check_method import CHECKS, Result, check, run
from selfsight.conformance.method_under_test import BrokenRuleError, DoesNotApplyError, Subject

__all__ = [
    "CHECKS",
    "BrokenRuleError",
    "DoesNotApplyError",
    "Result",
    "Subject",
    "check",
    "run",
]
