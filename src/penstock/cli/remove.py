"""Delete models of the hub from the local store, with all their revisions.

A server that has such a model loaded goes on with it; it is downloaded again when it is loaded the
next time.
"""

from __future__ import annotations

import argparse

from penstock.cli.quantity import size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="a hub id, as in 'penstock list'"
    )


def run(args: argparse.Namespace) -> int:
    from penstock.weights.store import remove_stored

    for model in args.models:
        print(f"{model}: {size(remove_stored(model))} are free", flush=True)
    return 0
