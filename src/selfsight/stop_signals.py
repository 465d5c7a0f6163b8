"""The signals that ask a program to stop, and the handler for all but training."""

import os
import signal
import sys
from types import FrameType

# Terminal (Ctrl-C), scheduler, closed connection, and SLURM before a job's time is over.
NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))


def exit_on_signals() -> None:
    """Exit at once on any of these signals, with a sentence and status 128 + n.

    Files are written so that a kill at any moment leaves them whole, and an exception would often
    end in a traceback of whatever was being imported. Training replaces this handler by its own.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` wants it
            signal.signal(number, _exit)


def signal_name(number: int) -> str:
    """Return the name of a signal as people know it."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def exit_status(number: int) -> int:
    """Return the exit status of a program that a signal ended, as shells count."""
    return 128 + number


def _exit(number: int, frame: FrameType | None) -> None:
    show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a progress bar hides it
    sentence = (
        f"{show_cursor}\nselfsight: stopped by {signal_name(number)}. A run that was training is "
        "resumed with: selfsight resume RUN\n"
    )
    os.write(2, sentence.encode())
    os._exit(exit_status(number))
