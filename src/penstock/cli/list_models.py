"""Show the models of the hub that lie in the local store.

A download that broke off is marked; 'penstock pull' goes on with it, and 'penstock rm' deletes a
model. Models that are kept packed are shown by 'penstock build --list'.
"""

from __future__ import annotations

import argparse
import sys

from penstock.cli.quantity import age, size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="write JSON, a model a line")


def run(args: argparse.Namespace) -> int:
    from penstock.weights.store import stored_models

    models = stored_models()
    if args.json:
        import msgspec

        for model in models:
            sys.stdout.write(msgspec.json.encode(model).decode() + "\n")
        return 0
    if not models:
        print("the local store is empty; 'penstock pull MODEL' downloads a model of the hub")
        return 0
    width = max(len(model.name) for model in models)
    print(f"{'MODEL':<{width}}  {'SIZE':>9}  {'USED':>12}  REVISIONS")
    for model in models:
        broken = "" if model.whole else "  (a download broke off)"
        print(
            f"{model.name:<{width}}  {size(model.num_bytes):>9}  {age(model.idle_s):>12}  "
            f"{', '.join(model.revisions)}{broken}"
        )
    return 0
