"""``python -m perfmodel`` and the ``perfmodel`` script."""

import gc
import sys

gc.set_threshold(100_000)  # starting up allocates much and frees little: fewer collections, 5 % less time

from perfmodel.cli import main  # noqa: E402


def run() -> None:
    """Run the command line and exit with its code."""
    sys.exit(main())


if __name__ == "__main__":
    run()
