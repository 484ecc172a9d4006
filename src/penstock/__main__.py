"""``python -m penstock``, and what the command ``penstock`` calls."""

import sys


def run() -> int:
    """Run the command line and return its exit code, that of an interrupt also for Ctrl-C while
    the commands are imported."""
    try:
        from penstock.cli.main import main

        return main()
    except KeyboardInterrupt:
        return 130  # EXIT_INTERRUPTED, which may not be there yet


if __name__ == "__main__":
    sys.exit(run())
