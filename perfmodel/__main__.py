"""``python -m perfmodel`` and the ``perfmodel`` script."""

import sys

from perfmodel.cli import main


def run() -> None:
    """Run the command line and exit with its code."""
    sys.exit(main())


if __name__ == "__main__":
    run()
