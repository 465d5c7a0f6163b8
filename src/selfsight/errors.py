"""Errors that users see without a traceback, and helpers for their messages."""

import difflib
import errno
import json
import shlex
import traceback
import unicodedata
from collections.abc import Iterable, Sequence

REPORT_TO = "see 'Report a bug' in CONTRIBUTING.md"
ADVICE = {  # by number of an OSError
    errno.ENOSPC: "The disk is full: free some space.",
    errno.EDQUOT: "The quota of the disk is used up: free some space.",
    errno.EISDIR: "It is a folder: give the name of a file.",
    errno.EFBIG: "Raise the limit of the size of a file (ulimit -f), or choose another disk.",
    errno.EACCES: "Check the permissions, or choose another place.",
    errno.EPERM: "Check the permissions, or choose another place.",
    errno.EROFS: "Choose a place that can be written.",
    errno.EMFILE: "Too many files are open: raise the limit, for example with ulimit -n 4096.",
    errno.ENOENT: "Check the name; it may have been deleted meanwhile.",
}


class UserError(ValueError):
    """A mistake of the user: what happened, what was expected, what to do."""


class RunError(RuntimeError):
    """A run that cannot continue, without a mistake in the command: what happened, what to do."""


class DivergedError(RunError):
    """Training produced numbers that are not finite."""


class StoppedError(KeyboardInterrupt):
    """A signal stopped a run between two steps; like Ctrl-C, no handler of errors catches it."""

    def __init__(self, sentence: str, signal_number: int) -> None:
        super().__init__(sentence)
        self.signal_number = signal_number


def escape(text: str) -> str:
    """Escape characters that control or confuse a terminal: \\x1b, \\n, \\u202e.

    Names of files, classes and settings are untrusted: they must not start a new line, move the
    cursor, or change the text direction.
    """
    if text.isprintable():
        return text
    shown = (c if c.isprintable() or unicodedata.category(c) == "Zs" else _escape(c) for c in text)
    return "".join(shown)


def quote_word(text: str) -> str:
    """Quote a path for a shell, and write one that begins like a flag with ./ in front."""
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def describe_failure(error: BaseException) -> str:
    """Describe in one or two sentences what happened and what to do, or where to report a bug."""
    return escape(_describe(error))


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    names = {cls.__name__ for cls in type(error).__mro__}
    if isinstance(error, UserError | RunError):
        return str(error)
    if "OutOfMemoryError" in names:  # torch's, which is not imported here
        return (
            f"The memory of the GPU is not enough. Use a smaller --batch-size, --chunk, smaller "
            f"views or a smaller backbone. ({text[:200]})"
        )
    if isinstance(error, MemoryError) or "can't allocate memory" in text:  # of torch, on the CPU
        return (
            "The memory of this machine is not enough. Use --data.storage stream, a smaller "
            f"--batch-size or network, narrower heads (--method.dim) or fewer processes. "
            f"({text[:200]})"
        )
    if isinstance(error, json.JSONDecodeError):
        return f"A JSON file is damaged: {text}. Restore it from a copy, or write it again."
    if isinstance(error, OSError) and error.errno is not None:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}. {ADVICE.get(error.errno, 'Check the file or disk.')}"
    if is_lost_connection(error):
        return (
            "The connection to another process of this run was lost: it has ended, or cannot be "
            f"reached. Its own message says why. ({text[:200]})"
        )
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return (
        f"This is a bug in selfsight: {type(error).__name__}: {text[:300]}{where}. Add --verbose "
        f"to see the traceback, and report it with the command: {REPORT_TO}"
    )


def is_lost_connection(error: BaseException) -> bool:
    """Return whether this error of torch means that another process no longer answers."""
    text, names = str(error).lower(), {cls.__name__ for cls in type(error).__mro__}
    words = ("gloo", "pair closure", "closed by peer", "reset by peer")
    return "DistError" in names or (
        isinstance(error, RuntimeError) and any(word in text for word in words)
    )


def is_timeout(error: BaseException) -> bool:
    """Return whether an error of a lost connection means that nothing came for too long."""
    return "timeout" in str(error).lower() or "timed out" in str(error).lower()


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean "x"?' for a near miss, else an empty string; ignore case."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f' Did you mean "{by_lower[close[0]]}"?' if close else ""


def count_noun(count: int, noun: str) -> str:
    """Return a number with its noun: "1 image", "2 images"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def list_first(items: Sequence[str], limit: int = 6, separator: str = ", ") -> str:
    """Return the first few items, and how many more there are."""
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return separator.join(items[:limit]) + more
