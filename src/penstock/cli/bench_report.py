"""Write a report of load tests: one HTML file with tables and plots, and the plots as files.

  penstock bench report run.json --html report.html
  penstock bench report ours=a.json theirs=b.json --html report.html --plots plots --format png
  penstock bench report q8=a.json q4=b.json --quality q8=12.9 q4=q4-perplexity.json --html r.html

Results are what 'penstock bench serve --json' has written. The file has all that it shows within
it, loads nothing, and opens anywhere.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.parser import UsageError
from penstock.terminal import harmless
from penstock.written_file import check_writable, write_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.bench.load.result import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results",
        nargs="+",
        metavar="[NAME=]RESULT.json",
        help="results of 'penstock bench serve', and what to call them (default: the file's name)",
    )
    add_output_arguments(parser)
    parser.add_argument(
        "--quality",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=PPL|FILE",
        help="a result's perplexity, or what 'penstock eval perplexity' or 'eval kl' wrote with "
        "--json: the third axis of throughput and latency",
    )


def add_output_arguments(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Options of what is written, which ``bench serve`` has, too."""
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write the report here (needs penstock[plot])"
    )
    parser.add_argument(
        "--plots", type=Path, metavar="FOLDER", help="write a file for each plot into this folder"
    )
    parser.add_argument(
        "--format", choices=("svg", "png", "pdf"), default="svg", help="of these (default: svg)"
    )


def check_outputs(args: argparse.Namespace) -> bool:
    """Whether anything is to be drawn. Raises ConfigError if it could not be: before hours of
    measuring."""
    if args.html is None and args.plots is None:
        return False
    from penstock.bench.plots.render import require_drawing

    require_drawing()
    if args.html is not None:
        check_writable("--html", args.html)
    if args.plots is not None and args.plots.exists() and not args.plots.is_dir():
        raise UsageError(f"argument --plots: {args.plots} is no folder")
    return True


def run(args: argparse.Namespace) -> int:
    if not check_outputs(args):
        raise UsageError("nothing is to be written; name a file with --html, or a folder: --plots")
    from penstock.bench.load.naming import read_results

    write_report(args, read_results(args.results, args.quality))
    return 0


def write_report(args: argparse.Namespace, results: Sequence[Result]) -> None:
    """Write what ``--html`` and ``--plots`` ask for, and say what could not be drawn."""
    from penstock.bench.load.charts.report import figures_of, page_of, write_plots

    figures = figures_of(results)
    if args.html is not None:
        write_bytes(args.html, page_of(results, figures).html())
        print(f"report: {args.html}")
    if args.plots is not None:
        paths = write_plots(results, figures, args.plots, args.format)
        print(f"plots: {len(paths)} in {args.plots}")
    for figure in figures:
        if figure.omitted is not None:
            print(harmless(f"{figure.title}. {figure.omitted}", sys.stdout))
