"""Find options for a model, this machine and a load, and write them to a profile.

  penstock tune --trace trace.csv --slo ttft:500ms tpot:50ms --out profile.json
  penstock tune MODEL --trace trace.jsonl --rate 4 --slo e2el:10s --allow int8 --out profile.json
  penstock serve MODEL --profile profile.json
  penstock tune MODEL --watch http://localhost:8000 --profile profile.json \\
      --calibration here.json --out next.json

It measures what steps take here (penstock calibrate), simulates many configurations under the
trace, and serves the best three and the default in turn, under the same load, to choose by what was
measured. Options given beside it are those of the default. Answers stay as exact as they are,
unless --allow opens less exact types. With --watch it compares what a server sees with what its
profile was made for, and proposes the next one by simulation; --apply has the server use it, and no
request fails for that. docs/tuning.md says more.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from penstock.cli.bench_common import ended
from penstock.cli.parser import UsageError
from penstock.cli.tune_options import RARE, WATCHING, add_options
from penstock.written_file import check_writable

if TYPE_CHECKING:
    from penstock.profile import ObjectiveName

__all__ = ["RARE", "add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    check_writable("--out", args.out)
    if (args.trace is None) == (args.watch is None):
        raise UsageError("name a --trace of requests, or a server to --watch")
    _check_variants(args)
    if args.watch is not None:
        from penstock.cli.tune_watch import watch

        return watch(args)
    for name in WATCHING:
        if getattr(args, name) is not None:
            raise UsageError(f"argument --{name.replace('_', '-')}: it is for --watch")
    from penstock.cli.tune_run import load_of, tune
    from penstock.hardware import detect

    load = load_of(args, args.trace, args.slo)
    objective: ObjectiveName = args.objective or "goodput"
    return ended(tune(args, load, objective, detect(), verify=not args.no_verify))


def _check_variants(args: argparse.Namespace) -> None:
    """Raise UsageError for options of variants that do not go together, or with others."""
    if args.variants is None:
        if args.max_loss is not None:
            raise UsageError("argument --max-loss: is of --variants alone; leave it out")
        return
    if args.max_loss is None:
        raise UsageError(
            "argument --variants: needs --max-loss NATS, such as 0.05: what answers may lose"
        )
    if args.watch is not None:
        raise UsageError(
            "argument --variants: a server that runs takes no other model; tune with --trace"
        )
    for name in ("int8", "int4"):
        if name in args.allow:
            raise UsageError(
                f"argument --allow: {name} would round variants again; leave it or --variants out"
            )
