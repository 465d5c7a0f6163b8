"""Mistakes a user can make, told in a sentence."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """What happened, what was expected, what to do; shown without a traceback."""


class DivergedError(RuntimeError):
    """The numbers of a run are no longer finite; shown without a traceback."""


def nearest(word: str, known: Iterable[str]) -> str:
    """' Did you mean "x"?' for a near miss, else nothing."""
    close = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.5)
    return f' Did you mean "{close[0]}"?' if close else ""
