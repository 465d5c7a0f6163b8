"""`python -m selfsight` is the `selfsight` command, as torchrun needs it."""

from selfsight.cli import main

if __name__ == "__main__":
    main()
