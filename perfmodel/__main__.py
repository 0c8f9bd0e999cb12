"""``python -m perfmodel`` and the ``perfmodel`` script."""

import gc
import sys


def run() -> None:
    """Run the command line and exit with its code."""
    gc.set_threshold(100_000)  # starting up allocates much and frees little: fewer collections, 5 % less time
    try:
        from perfmodel.cli import main  # inside: an interrupt while modules are loaded is one too

        code = main()
    except KeyboardInterrupt:
        code = 130
    gc.freeze()  # nor is anything searched for garbage at the end
    sys.exit(code)


if __name__ == "__main__":
    run()
