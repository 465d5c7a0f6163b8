"""Run the `selfsight` command as `python -m selfsight`, the form that torchrun needs."""

from selfsight.cli import main

if __name__ == "__main__":
    main()
