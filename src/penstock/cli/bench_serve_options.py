"""The options of ``penstock bench serve``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from penstock.cli.bench_common import add_json_argument
from penstock.cli.bench_report import add_output_arguments
from penstock.cli.options import from_zero, positive_int, whole_number

KEY_VARIABLE: Final = "OPENAI_API_KEY"
DEFAULT_REQUESTS: Final = 100
DEFAULT_CONCURRENCY: Final = 8
DEFAULT_GOOD_SHARE: Final = 0.95
DRAWN: Final = ("random", "prefix", "multi-turn", "patterns")
"""Workloads that are not read from a file."""

RARE: Final = frozenset(
    {
        *("--prefixes", "--turns", "--think-ms", "--scale", "--speed", "--arrivals", "--warmup"),
        *("--seed", "--good-share", "--body", "--header", "--insecure", "--tokenizer"),
        *("--timeout", "--stall-timeout", "--connect-timeout", "--scrape", "--api-key-env"),
        *("--endpoint", "--csv", "--plots", "--format"),
    }
)
"""Options that ``--help`` leaves out."""

Number = TypeVar("Number", int, float)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url",
        metavar="URL",
        help="http://HOST:PORT, or a URL with the path that /chat/completions is below",
    )
    _add_workload(parser.add_argument_group("workload"))
    _add_load(parser.add_argument_group("load"))
    _add_server(parser.add_argument_group("server"))
    group = parser.add_argument_group("results")
    group.add_argument(
        "--slo",
        nargs="+",
        default=[],
        metavar="LIMIT",
        help="what a good answer keeps to, such as ttft:500ms tpot:30ms e2el:10s",
    )
    add_json_argument(group)
    add_output_arguments(group)
    group.add_argument(
        "--csv", type=Path, metavar="FILE", help="write a line for each request here"
    )


def _add_workload(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--workload",
        default="random",
        metavar="KIND|FILE",
        help=f"{', '.join(DRAWN)}, or a file (default: random)",
    )
    group.add_argument(
        "--input-len",
        metavar="N",
        help="prompt tokens: 512, 100..900 (any between) or 512~64 (mean and deviation); of "
        "multi-turn, what a turn adds; of patterns, SHORT,LONG (default: 512; 128,2048)",
    )
    group.add_argument(
        "--output-len",
        metavar="N",
        help="answers' tokens, in the same form (default: 128; 32,512; of prompt files, as the "
        "server ends them)",
    )
    group.add_argument(
        "--prefix-len",
        type=positive_int,
        metavar="N",
        help="tokens that prompts begin with and share (default: 0; of prefix, 512)",
    )
    group.add_argument(
        "--prefixes", type=positive_int, metavar="N", help="how many different ones (default: 1)"
    )
    group.add_argument("--turns", metavar="N", help="of multi-turn conversations (default: 4)")
    group.add_argument(
        "--think-ms",
        metavar="N",
        help="milliseconds between an answer and the next turn (default: 0)",
    )
    group.add_argument(
        "--scale", type=positive, metavar="X", help="multiply a trace's lengths (default: 1)"
    )
    group.add_argument(
        "--speed", type=positive, metavar="X", help="replay a trace X times as fast (default: 1)"
    )
    group.add_argument(
        "--seed",
        type=whole_number,
        metavar="N",
        help="repeats texts, lengths and times; without it, texts are new in each call, so that "
        "none is in the server's cache",
    )


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--rate",
        type=several(positive),
        metavar="R[,R...]",
        help="conversations that begin in a second; several are measured one after the other",
    )
    group.add_argument(
        "--concurrency",
        type=several(positive_int),
        metavar="N[,N...]",
        help=f"conversations that are open at once (default: {DEFAULT_CONCURRENCY} without "
        "--rate); with --rate, at most",
    )
    group.add_argument(
        "--num-prompts",
        type=positive_int,
        metavar="N",
        help=f"conversations of each run (default: {DEFAULT_REQUESTS}; without end with "
        "--duration; of a file, all)",
    )
    group.add_argument(
        "--duration", type=positive, metavar="S", help="begin no conversation after S seconds"
    )
    group.add_argument(
        "--arrivals",
        default=None,
        metavar="KIND",
        help="poisson, constant or gamma:CV with --rate; at-once; ramp:LOW..HIGH:SECONDS; recorded "
        "(default: poisson; of traces without --rate or --concurrency, recorded)",
    )
    group.add_argument(
        "--repeats",
        type=positive_int,
        default=1,
        metavar="N",
        help="runs of each load (default: 1)",
    )
    group.add_argument(
        "--warmup", type=int, default=0, metavar="N", help="conversations before them (default: 0)"
    )
    group.add_argument(
        "--find-rate",
        action="store_true",
        help="search for the highest rate within --slo, from --rate on (default: 1)",
    )
    group.add_argument(
        "--good-share",
        type=positive,
        metavar="X",
        help=f"the part of answers that has to be within it (default: {DEFAULT_GOOD_SHARE})",
    )


def _add_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model", default="", metavar="NAME", help="the server's name for it, if it has several"
    )
    group.add_argument(
        "--endpoint",
        choices=("chat", "completions"),
        default="chat",
        help="which API is asked (default: chat)",
    )
    group.add_argument(
        "--api-key-env",
        metavar="NAME",
        help=f"the environment variable that holds the server's key (default: {KEY_VARIABLE}, if "
        "it is set)",
    )
    group.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'N: V'",
        help="send this header, too; results have its name alone",
    )
    group.add_argument(
        "--body", metavar="JSON", help="fields of every request, such as '{\"temperature\": 0}'"
    )
    group.add_argument(
        "--tokenizer",
        metavar="DIR|ID",
        help="the model's, for prompts of exact lengths; Penstock's servers and vLLM's need none",
    )
    group.add_argument(
        "--insecure", action="store_true", help="do not check the server's certificate"
    )
    for name, default, about in (
        ("--timeout", 3600.0, "a request is given up after S seconds"),
        ("--stall-timeout", 600.0, "or after S without a byte"),
        ("--connect-timeout", 10.0, "and a connection after S"),
        ("--scrape", 1.0, "seconds between two looks at the server's /metrics; 0: none"),
    ):
        group.add_argument(
            name,
            type=positive if default > 1 else from_zero,
            default=default,
            metavar="S",
            help=f"{about} (default: {default:g})",
        )


def positive(text: str) -> float:
    """A number above 0."""
    value = from_zero(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"not above 0: {text!r}")
    return value


def several(read: Callable[[str], Number]) -> Callable[[str], list[Number]]:
    """A reader of ``1,2,4``, of which ``read`` reads each."""

    def parse(text: str) -> list[Number]:
        return [read(part) for part in text.split(",")]

    return parse
