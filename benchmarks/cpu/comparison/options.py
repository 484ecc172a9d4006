"""The command line of ``run.py``."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Collection
from pathlib import Path

from comparison.cap import CAPS
from comparison.cases import Metric, standard_cases
from comparison.peers import PEERS, PRECISIONS
from comparison.text import WINDOW
from penstock.cli.options import positive_int

SHAPE = "llama-3.2-1b"
"""The shape that is compared unless another is named."""
PROFILES = {"quick": (128, 32, (16, 64)), "full": (128, 128, (64, 256))}
"""Tokens of prompt and output, and of the outputs of the mixed case."""


def parse(description: str) -> argparse.Namespace:
    """Return the options of the command line; ends the process where they mean nothing."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--work",
        type=Path,
        default=cache / "penstock-benchmarks",
        help="folder for environments and checkpoints (default: %(default)s)",
    )
    common.add_argument(
        "--engines",
        type=names("engine", PEERS),
        default=list(PEERS),
        help="separated by commas (default: all of " + ", ".join(PEERS) + ")",
    )
    held = argparse.ArgumentParser(add_help=False)
    held.add_argument(
        "--isa",
        choices=tuple(CAPS),
        help="hold every engine to these instructions, those of "
        + "; ".join(f"{cap.name}: {cap.title}" for cap in CAPS.values()),
    )
    commands.add_parser("setup", parents=[common, held], help="install the peers")
    shapes = argparse.ArgumentParser(add_help=False)
    shapes.add_argument(
        "--shape", help=f"a folder of benchmarks/configs, or a path (default: {SHAPE})"
    )
    shapes.add_argument(
        "--precisions",
        type=names("precision", PRECISIONS),
        help="of " + ", ".join(PRECISIONS) + " (default: all)",
    )
    commands.add_parser(
        "checkpoints", parents=[common, shapes], help="write the models that they read"
    )
    cases = standard_cases(*PROFILES["full"])
    run = commands.add_parser("run", parents=[common, shapes, held], help="measure and report")
    run.add_argument(
        "--gguf",
        type=Path,
        metavar="FILE",
        help="compare this file, as it is, instead of a shape's checkpoints",
    )
    run.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="with --gguf: report each engine's perplexity of this text, too",
    )
    run.add_argument(
        "--windows",
        type=positive_int,
        default=20,
        help=f"of {WINDOW} tokens of the text, at most (default: %(default)s)",
    )
    run.add_argument(
        "--cases",
        type=_listed,
        help="of "
        + ", ".join(case.name for case in cases)
        + " (default: all but "
        + " and ".join(case.name for case in cases if case.named_only)
        + ")",
    )
    run.add_argument(
        "--kv-cache",
        choices=("16", "8"),
        default="16",
        help="bits of keys and values where an engine lets one choose (default: %(default)s)",
    )
    run.add_argument(
        "--profile",
        choices=tuple(PROFILES),
        default="full",
        help="lengths of output: of most cases "
        + ", ".join(f"{output} tokens in {name}" for name, (_, output, _) in PROFILES.items())
        + " (default: %(default)s)",
    )
    run.add_argument(
        "--rounds", type=positive_int, default=3, help="(default: %(default)s; of one, no ratio)"
    )
    run.add_argument("--minutes", type=duration, help="begin no round that would not end in time")
    run.add_argument("--threads", type=positive_int, help="default: the physical cores")
    run.add_argument(
        "--timeout",
        type=duration,
        default=1800.0,
        help="seconds for one case (default: %(default)s)",
    )
    run.add_argument("--seed", type=_seed, default=0, help="of the prompts (default: %(default)s)")
    run.add_argument(
        "--out",
        type=Path,
        help="a .json file, or a folder for it (default: results/DATE-SHAPE[-ISA].json, with a "
        "number where that is there)",
    )
    again = commands.add_parser("report", help="write Markdown and plots of a result again")
    again.add_argument("results", type=Path)
    again.add_argument(
        "--out", type=Path, help="a file, or a folder for it (default: beside the results)"
    )
    one = commands.add_parser("picture", help="draw some metrics of a result alone")
    one.add_argument("results", type=Path)
    one.add_argument("--precision", default="file", help="(default: %(default)s)")
    one.add_argument("--metrics", type=_metrics, default=tuple(Metric), help="such as DECODE,TTFT")
    one.add_argument("--out", type=Path, required=True, help="the SVG")
    args = parser.parse_args()
    if getattr(args, "text", None) is not None and args.gguf is None:
        parser.error("--text needs --gguf: the weights of a shape are random")
    if args.command in ("run", "checkpoints"):
        if getattr(args, "gguf", None) is not None and (args.shape or args.precisions):
            parser.error("--gguf takes the place of --shape and --precisions")
        args.shape, args.precisions = args.shape or SHAPE, args.precisions or list(PRECISIONS)
    return args


def _listed(text: str) -> list[str]:
    """Names between commas, each once."""
    found = list(dict.fromkeys(item for item in text.split(",") if item))
    if not found:
        raise argparse.ArgumentTypeError("it names nothing")
    return found


def names(what: str, known: Collection[str]) -> Callable[[str], list[str]]:
    """Return what reads a list of these names."""

    def read(text: str) -> list[str]:
        found = _listed(text)
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"there is no {what} {name!r}; there are {', '.join(known)}"
                )
        return found

    return read


def duration(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"not a positive number: {text!r}")
    return number


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"not a whole number from 0 on: {text!r}")
    return int(text)


def _metrics(text: str) -> tuple[Metric, ...]:
    try:
        return tuple(Metric[name] for name in _listed(text))
    except KeyError as error:
        known = ", ".join(metric.name for metric in Metric)
        raise argparse.ArgumentTypeError(f"no metric {error}; there are {known}") from None
