"""Check whether a method keeps the contract: of this package, or from outside."""

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
