"""Run the `selfsight` command, also as `python -m selfsight`, the form that torchrun needs."""

# Built into Python; `signal` takes some milliseconds to import.
import _signal  # type: ignore[import-not-found]
import os
import sys


def main() -> None:
    """Run the command; from here on, a signal ends it without a traceback.

    Python handles Ctrl-C by an exception, which would print a traceback of the current import.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from selfsight.stop_signals import exit_on_signals, explain_bus_errors

    exit_on_signals()
    explain_bus_errors()
    if "WORLD_SIZE" in os.environ:  # torch would show stacks of C++ when another process ends
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    from selfsight.cli.main import main

    try:
        main()
    except SystemExit as error:
        if isinstance(error.code, int) and error.code and "WORLD_SIZE" in os.environ:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(error.code)  # threads that wait for another process would abort at the end
        raise


if __name__ == "__main__":
    main()
