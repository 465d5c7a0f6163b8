"""Run the `selfsight` command, also as `python -m selfsight`, the form that torchrun needs."""

from selfsight.stop_signals import exit_on_signals


def main() -> None:
    """Run the command; a signal ends it with a sentence from the first import on."""
    exit_on_signals()
    from selfsight.cli import main

    main()


if __name__ == "__main__":
    main()
