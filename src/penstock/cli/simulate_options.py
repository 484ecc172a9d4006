"""The options of ``penstock simulate``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from penstock.cli.bench_serve_options import positive, several
from penstock.cli.options import positive_int, whole_number

RARE: Final = frozenset(
    {"--arrivals", "--seed", "--catalogue", "--ignore-config-field", "--duration", "--repeat"}
)
"""Options that ``--help`` leaves out."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace",
        metavar="TRACE",
        type=Path,
        help="Azure's or BurstGPT's .csv, or a .jsonl of Mooncake's form",
    )
    parser.add_argument(
        "configs",
        metavar="CONFIG",
        nargs="*",
        help="NAME:key=value,... of the engine's options (max_num_seqs=64, kv_cache_dtype=int8) "
        "and replicas, routing, max_waiting, network; or a TOML file (default: the defaults)",
    )
    _add_load(parser.add_argument_group("load"))
    _add_clock(parser.add_argument_group("what steps take"))
    group = parser.add_argument_group("results")
    group.add_argument(
        "--slo",
        nargs="+",
        default=[],
        metavar="LIMIT",
        help="what a good answer keeps to, such as ttft:500ms tpot:30ms e2el:10s",
    )
    group.add_argument(
        "--json", type=Path, metavar="FILE", help="write every figure here, - for the terminal"
    )


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--rate",
        type=several(positive),
        metavar="R[,R...]",
        help="conversations that begin in a second, in place of the trace's times",
    )
    group.add_argument(
        "--concurrency",
        type=several(positive_int),
        metavar="N[,N...]",
        help="conversations that are open at most",
    )
    group.add_argument(
        "--speed",
        type=several(positive),
        metavar="X[,X...]",
        help="replay the trace X times as fast (default: 1)",
    )
    group.add_argument(
        "--scale", type=positive, default=1.0, metavar="X", help="multiply lengths (default: 1)"
    )
    group.add_argument(
        "--num-prompts", type=positive_int, metavar="N", help="the first N requests of the trace"
    )
    group.add_argument(
        "--duration", type=positive, metavar="S", help="begin no conversation after S seconds"
    )
    group.add_argument(
        "--repeat",
        type=positive_int,
        default=1,
        metavar="N",
        help="play the trace N times, one after the other, with other texts (default: 1)",
    )
    group.add_argument(
        "--arrivals", metavar="KIND", help="of --rate: poisson, constant or gamma:CV"
    )
    group.add_argument(
        "--seed",
        type=whole_number,
        default=0,
        metavar="N",
        help="draws arrivals and routing (default: 0)",
    )


def _add_clock(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model",
        default="",
        metavar="MODEL",
        help="a checkpoint folder, a config.json, a GGUF file or a hub id, of which the "
        "configuration alone is read (default: the demo model)",
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
        "--kv-disk-tokens",
        type=positive_int,
        metavar="N",
        help="tell what a disk of N tokens below the KV cache would find (times are without it)",
    )
    group.add_argument("--gpu", metavar="NAME", help="an accelerator of penstock size's catalogue")
    group.add_argument(
        "--catalogue", type=Path, metavar="FILE", help="a file of accelerators of your own"
    )
    group.add_argument(
        "--ignore-config-field",
        action="append",
        default=[],
        metavar="TEXT",
        help="accept a field of config.json that Penstock does not know",
    )
