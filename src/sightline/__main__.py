"""`python -m sightline` is the `sightline` command, as torchrun needs it."""

from sightline.cli import main

if __name__ == "__main__":
    main()
