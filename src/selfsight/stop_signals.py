"""The signals that ask a program to stop, the handler outside of training, and bus errors."""

import contextlib
import ctypes
import mmap
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

# Terminal (Ctrl-C), scheduler, closed connection, and SLURM before a job's time is over.
NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))


def exit_on_signals() -> None:
    """Exit at once on any of these signals, with a sentence and status 128 + n.

    Files are written so that a kill at any moment leaves them intact, and an exception would often
    print a traceback of the current import. Training replaces this handler by its own.
    """
    set_handler(_exit)


def set_handler(handler: Callable[[int, FrameType | None], object]) -> dict[int, Any]:
    """Handle these signals; return the handlers before. Only the main thread can do this."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in SIGNALS}
    before = {n: old for n, old in found.items() if old is not signal.SIG_IGN}  # for `nohup`
    for number in before:
        signal.signal(number, handler)
    return before


def restore_handlers(before: dict[int, Any]) -> None:
    """Restore what `set_handler` returned."""
    for number, handler in before.items():
        signal.signal(number, handler or signal.SIG_DFL)


def explain_bus_errors() -> None:
    """Exit with a sentence if a file that is mapped into memory can no longer be read.

    Python's own handlers run after the current instruction, which would be repeated forever here.
    So the system calls this handler, in the thread that was reading.
    """
    if hasattr(signal, "SIGBUS"):
        ctypes.CDLL(None).signal(signal.SIGBUS, _explain_bus_error)


def signal_name(number: int) -> str:
    """Return the usual name of a signal."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def exit_status(number: int) -> int:
    """Return the exit status of a program that a signal ended, as shells count."""
    return 128 + number


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _explain_bus_error(number: int) -> None:
    files = " and ".join(_list_cut_files())
    what = (
        f"{files} was cut short while it was read. Restore it (what is in the cache folder is "
        "built again by itself)"
        if files
        else "a file that is mapped into memory can no longer be read (bus error). Check its disk "
        "or network drive, and whether the shared memory is full"
    )
    sentence = (
        f"\nselfsight: {what}; then `selfsight resume RUN` resumes a run that was training.\n"
    )
    os.write(2, sentence.encode(errors="replace"))
    os._exit(1)


def _list_cut_files() -> list[str]:
    """Mapped files that no longer have all the bytes that are mapped."""
    cut = []
    with contextlib.suppress(OSError), open("/proc/self/maps", errors="surrogateescape") as maps:
        for line in maps:  # BEGIN-END rights OFFSET device inode NAME
            place, rights, offset, _, _, *name = line.rstrip("\n").split(maxsplit=5)
            if not name or not name[0].startswith("/") or not rights.startswith("r"):
                continue
            begin, end = (int(number, 16) for number in place.split("-"))
            with contextlib.suppress(OSError):
                if int(offset, 16) + end - begin >= os.stat(name[0]).st_size + mmap.PAGESIZE:
                    cut.append(name[0])
    return list(dict.fromkeys(cut))


def _exit(number: int, frame: FrameType | None) -> None:
    show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a progress bar hides it
    sentence = (
        f"{show_cursor}\nselfsight: stopped by {signal_name(number)}. A run that was training is "
        "resumed with: selfsight resume RUN\n"
    )
    os.write(2, sentence.encode())
    os._exit(exit_status(number))
