"""Load a server of OpenAI's API, and time what comes back.

  penstock bench serve http://localhost:8000 --concurrency 1,8,64
  penstock bench serve http://localhost:8000 --rate 4 --slo ttft:500ms tpot:30ms
  penstock bench serve http://localhost:8000 --workload trace.jsonl --speed 2 --json run.json
  penstock bench serve http://localhost:8000 --rate 1,2,4,8 --slo ttft:1s --html report.html

Workloads: random (of given lengths), prefix (prompts that share their beginnings), multi-turn
(conversations), patterns (short and long prompts and answers), or a file: prompts or a trace of
Mooncake's form (.jsonl), Azure's or BurstGPT's (.csv). With --rate, conversations begin at random
times, whatever the server does; without it, --concurrency of them are open at all times.
"""

from __future__ import annotations

import argparse
import os
import secrets
import tempfile
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.bench_common import command_line, ended
from penstock.cli.bench_report import check_outputs, write_report
from penstock.cli.bench_serve_options import RARE, add_options
from penstock.cli.bench_serve_plan import load_plan, target_of
from penstock.errors import PenstockError, first_line
from penstock.written_file import check_writable, write_bytes, write_json

if TYPE_CHECKING:
    from penstock.bench.load.document import LoadReport

__all__ = ["RARE", "add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    from penstock.bench.load.campaign import Campaign
    from penstock.bench.load.report import made_report
    from penstock.bench.load.request_table import request_table
    from penstock.bench.load.result import Result
    from penstock.cli.bench_serve_progress import ServeProgress
    from penstock.cli.bench_serve_table import print_report

    draw = check_outputs(args)
    if args.csv is not None:
        check_writable("--csv", args.csv)
    plan = load_plan(args, secrets.randbits(31) if args.seed is None else args.seed)
    target = target_of(args)
    tokens_of = None
    if args.tokenizer is not None:
        from penstock.bench.load.token_counter import token_counter

        tokens_of = token_counter(args.tokenizer)
    with Campaign(target, plan, tokens_of) as campaign:
        server = campaign.probe()
        with ServeProgress() as progress:
            campaign.run(server, progress)
        report = made_report(command_line(), plan, server, campaign)
    print_report(report)
    if args.json is not None:
        write_json(args.json, report)
    if args.csv is not None:
        write_bytes(args.csv, request_table(report.runs))
    if draw and report.runs:
        try:
            write_report(args, [Result(report.server.model, report)])
        except Exception as error:
            # Measuring may have taken hours, and a report can be made again.
            path = args.json or _kept(args.html or args.plots, report)
            raise PenstockError(
                f"the report could not be made ({type(error).__name__}: {first_line(error)}); the "
                f"result is in {path}, of which 'penstock bench report {path}' makes one"
            ) from error
    if not report.partial:
        _check_answered(report)
    return ended(report.partial)


def _check_answered(report: LoadReport) -> None:
    """Raise PenstockError where no request of any run was answered: nothing was measured."""
    wholes = [run.whole for run in report.runs]
    if not wholes or any(whole.completed or not whole.failed for whole in wholes):
        return
    first = wholes[0]
    kind, count = max(first.errors.items(), key=itemgetter(1))
    message = first.error_messages.get(kind, "it says no more")
    raise PenstockError(
        f"none of the requests was answered ({count} x {kind}: {message}); see the server's log"
    )


def _kept(beside: Path, report: LoadReport) -> Path:
    """Write the result to a new file, since no option names one; return its path."""
    folder = beside.parent if beside.parent.is_dir() else Path()
    handle, name = tempfile.mkstemp(".json", f"{beside.stem}-result-", folder)
    os.close(handle)
    write_json(Path(name), report)
    return Path(name)
