"""The options of ``penstock tune``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from penstock.cli.bench_serve_options import positive
from penstock.cli.observe import KEY_VARIABLE
from penstock.cli.options import RARE_ENGINE, add_engine_arguments, positive_int, whole_number
from penstock.tune.objective import OBJECTIVES

DEFAULT_REQUESTS: Final = 2000
RARE: Final = RARE_ENGINE | {
    *("--arrivals", "--candidates", "--keep", "--seed", "--max-waiting"),
    *("--since", "--interval", "--apply-within", "--api-key-env"),
}
"""Options that ``--help`` leaves out. Engine options are those of what is tuned."""
WATCHING: Final = ("since", "interval", "apply", "apply_within", "api_key_env")
"""Options of ``--watch`` alone."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="write the profile here"
    )
    _add_load(parser.add_argument_group("load"))
    _add_watch(parser.add_argument_group("watching a server"))
    _add_search(parser.add_argument_group("search"))
    _add_verification(parser.add_argument_group("verification"))
    add_engine_arguments(parser, skip=("speculative", "seed"))


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="Azure's or BurstGPT's .csv, or a .jsonl of Mooncake's form",
    )
    group.add_argument(
        "--rate", type=positive, metavar="R", help="R conversations a second, not the trace's times"
    )
    group.add_argument("--speed", type=positive, metavar="X", help="replay it X times as fast")
    group.add_argument(
        "--scale", type=positive, default=1.0, metavar="X", help="multiply lengths (default: 1)"
    )
    group.add_argument(
        "--concurrency", type=positive_int, metavar="N", help="at most N conversations at once"
    )
    group.add_argument(
        "--num-prompts",
        type=positive_int,
        default=DEFAULT_REQUESTS,
        metavar="N",
        help="the first N requests of the trace, or the last that a watched server has seen "
        f"(default: {DEFAULT_REQUESTS})",
    )
    group.add_argument(
        "--arrivals", metavar="KIND", help="of --rate: poisson, constant or gamma:CV"
    )
    group.add_argument(
        "--seed",
        type=whole_number,
        default=0,
        metavar="N",
        help="draws arrivals and candidates (default: 0)",
    )


def _add_watch(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--watch",
        metavar="URL",
        help="compare what users of the server there ask for with what its --profile was made for; "
        "where it differs, propose the next profile by simulation",
    )
    group.add_argument(
        "--since",
        type=positive,
        metavar="S",
        help="requests of the last S seconds alone (default: all that the server keeps)",
    )
    group.add_argument(
        "--interval",
        type=positive,
        metavar="S",
        help="look every S seconds until there is something to propose, with --apply for ever "
        "(default: once)",
    )
    group.add_argument(
        "--apply",
        action="store_true",
        default=None,
        help="have the server use what is proposed, at a time when nobody asks it for anything; "
        "takes its admin key",
    )
    group.add_argument(
        "--apply-within",
        type=whole_number,
        metavar="S",
        help="if there is no such time for S seconds, requests that come later wait until there is "
        "(default: the server's, 600)",
    )
    group.add_argument(
        "--api-key-env",
        metavar="NAME",
        help="the environment variable that holds the server's admin key (default: "
        f"{KEY_VARIABLE}, if it is set)",
    )


def _add_search(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--slo",
        nargs="+",
        default=[],
        metavar="LIMIT",
        help="limits of a good answer, such as ttft:500ms tpot:50ms e2el:10s",
    )
    group.add_argument(
        "--objective",
        choices=OBJECTIVES,
        help="what is to be best: good answers a second, output tokens a second, or the 99th "
        "percentile of first tokens or of whole answers (default: the profile's with --watch, or "
        "goodput)",
    )
    group.add_argument(
        "--allow",
        type=_names,
        default=(),
        metavar="TYPE[,TYPE...]",
        help="also try less exact types of weights (int8, int4) and of the KV cache (kv:int8, "
        "kv:fp8, kv:k8v4, kv:int4); others answer as exactly as now",
    )
    group.add_argument(
        "--variants",
        type=Path,
        metavar="FILE",
        help="also try quantized variants of MODEL that penstock quantize --compare has made: its "
        "comparison.json",
    )
    group.add_argument(
        "--max-loss",
        type=positive,
        metavar="NATS",
        help="those of --variants that lose no more, in nats a token (divergence from the model as "
        "it is)",
    )
    group.add_argument(
        "--keep",
        type=_names,
        default=(),
        metavar="OPTION[,OPTION...]",
        help="leave these options as they are, such as max_waiting: then no more is refused",
    )
    group.add_argument(
        "--calibration",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="what penstock calibrate has measured; may be repeated (default: measure now)",
    )
    group.add_argument(
        "--candidates",
        type=positive_int,
        default=48,
        metavar="N",
        help="configurations that begin the search (default: 48)",
    )
    group.add_argument(
        "--max-waiting",
        type=whole_number,
        metavar="N",
        help="the server's limit of waiting sequences now (default: 1024)",
    )


def _add_verification(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--no-verify", action="store_true", help="choose by simulation alone; measure nothing"
    )
    group.add_argument(
        "--rounds",
        type=positive_int,
        default=3,
        metavar="N",
        help="runs of each finalist, in turn (default: 3)",
    )
    group.add_argument(
        "--verify-seconds",
        type=positive,
        default=60.0,
        metavar="S",
        help="a run begins no conversation after S seconds (default: 60)",
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(each.strip().replace("-", "_") for each in text.split(",") if each.strip())
