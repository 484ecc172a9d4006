"""Compare two load tests, side by side: what differs beyond noise.

  penstock bench compare before.json after.json
  penstock bench compare before.json after.json --threshold 3% --fail-on-regression
  penstock bench compare a.json b.json --figures ttft.p50,tpot.p50,output_tokens_per_s

Results are what 'penstock bench serve --json' has written. What differs in their set-ups is said
first. A difference counts where repeats, or the requests of a run, would not show it by chance;
chances are adjusted for the number of figures, so that 5 % hold for all verdicts together.
"""

from __future__ import annotations

import argparse
import math

from penstock.cli.bench_common import add_json_argument, command_line
from penstock.cli.main import EXIT_FAILED
from penstock.written_file import write_json

RARE = frozenset({"--figures"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A.json", help="the result that is compared with")
    parser.add_argument("b", metavar="B.json", help="the result of which is said what changed")
    parser.add_argument(
        "--threshold",
        type=_part,
        default=0.0,
        metavar="PART",
        help="what changed by less is neither better nor worse: 3%% or 0.03 of what it is in A, of "
        "shares 3 points (default: 0)",
    )
    parser.add_argument(
        "--figures",
        metavar="NAME[,NAME...]",
        help="compare these, such as ttft.p99,output_tokens_per_s (default: ten usual ones)",
    )
    parser.add_argument(
        "--fail-on-regression",
        action="store_true",
        help="end with status 1 if anything is worse in B",
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    import shlex

    from penstock.bench.load.compare.comparison import compare
    from penstock.bench.load.compare.figures import DEFAULT, parse_figures
    from penstock.bench.load.naming import read_results
    from penstock.cli.bench_compare_table import print_comparison

    figures = DEFAULT if args.figures is None else parse_figures(args.figures)
    a, b = read_results([args.a, args.b], [])
    command = shlex.join(["penstock", *command_line()])
    found = compare(a, b, figures, args.threshold, command)
    print_comparison(a, b, found)
    if args.json is not None:
        write_json(args.json, found)
    return EXIT_FAILED if args.fail_on_regression and found.worse else 0


def _part(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a part such as 3% or 0.03: {text!r}") from None
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"not a part from 0 on: {text!r}")
    return value
