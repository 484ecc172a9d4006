"""Download a model of the hub into the local store, or go on with a download that broke off.

  penstock pull owner/name
  penstock pull owner/name:Q4_K_M
  penstock pull owner/name --revision v1.0

The store is the hub's cache (HF_HOME), so what other programs have downloaded is there, too. Every
command downloads what it needs by itself; this does so ahead. 'penstock list' shows what there is.
"""

from __future__ import annotations

import argparse

from penstock.cli.parser import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="a hub id, with a quantization behind it (owner/name:Q4_K_M) for one GGUF file",
    )
    parser.add_argument(
        "--revision", metavar="NAME", help="the branch, tag or commit (default: main)"
    )


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from penstock.weights.hub_pull import pull

    if args.revision is not None and len(args.models) > 1:
        raise UsageError("argument --revision: it is of one model; pull the others apart")
    for model in args.models:
        if Path(model).expanduser().exists():
            raise UsageError(f"argument MODEL: {model} is on this machine already")
        path = pull(model, args.revision)
        print(f"{model} is at {path}", flush=True)
    return 0
