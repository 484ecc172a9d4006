"""What the benchmark commands share: options, and how results are printed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.bench.digits import digits
from penstock.bench.machine import Machine
from penstock.bench.stats import Summary
from penstock.cli.main import EXIT_INTERRUPTED
from penstock.cli.options import positive_int
from penstock.terminal import harmless
from penstock.threads import format_count
from penstock.written_file import check_writable

if TYPE_CHECKING:
    from penstock.engine.loader import EnginePlan


def add_json_argument(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
) -> None:
    parser.add_argument(
        "--json",
        type=_json_file,
        metavar="FILE",
        help="write every figure, and the machine's, here",
    )


def _json_file(text: str) -> Path:
    """Raises ConfigError where it cannot be written: before anything is measured, not after."""
    path = Path(text)
    check_writable("--json", path)
    return path


def add_counts(group: argparse._ArgumentGroup, *counts: tuple[str, int, str]) -> None:
    """Options that take a positive whole number: name, default, and what it counts."""
    for name, default, about in counts:
        group.add_argument(
            name,
            type=positive_int,
            default=default,
            metavar="N",
            help=f"{about} (default: {default})",
        )


def add_trace_arguments(group: argparse._ArgumentGroup, requests: int) -> None:
    """Options for a trace, and for how many of its requests to replay."""
    group.add_argument("--trace", type=Path, required=True, metavar="FILE", help="the trace")
    add_counts(group, ("--requests", requests, "replay the first N"))


def command_line() -> list[str]:
    """The words after ``penstock``, to be repeated, for documents that others may read: of a header
    the name alone, since keys are sent in them."""
    words: list[str] = []
    for word in sys.argv[1:]:
        option, equals, value = word.partition("=")
        if option == "--header" and equals:
            word = f"{option}={_without_value(value)}"
        elif words and words[-1] == "--header":
            word = _without_value(word)
        words.append(word)
    return words


def _without_value(header: str) -> str:
    name, colon, _ = header.partition(":")
    return f"{name}: ..." if colon else "..."


def ended(stopped: bool) -> int:
    """The exit code of a benchmark that Ctrl-C has ``stopped``, or not."""
    return EXIT_INTERRUPTED if stopped else 0


def print_table(rows: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def machine_rows(machine: Machine) -> list[tuple[str, str]]:
    kernels = "" if machine.kernels is None else f", kernels for {machine.kernels}"
    rows = [("machine", f"{machine.cpu_model}, {format_count(machine.threads)}{kernels}")]
    if machine.unmeasured is not None:
        what = "machine speed" if machine.f32_flops is None else "read bandwidth"
        rows.append((what, f"not measured: {machine.unmeasured}"))
    spreads = machine.spreads
    if machine.read_bandwidth_bytes_per_s is not None:
        read = f"{machine.read_bandwidth_bytes_per_s / 1e9:.1f} GB/s"
        rows.append(("read bandwidth", read + _within(spreads.read_bandwidth)))
    for name, value, spread in (
        ("f32", machine.f32_flops, spreads.f32),
        ("bf16", machine.bf16_flops, spreads.bf16),
        ("int8", machine.int8_ops, spreads.int8),
    ):
        if value is not None:
            rows.append((f"{name} peak", f"{value / 1e9:,.0f} Gop/s" + _within(spread)))
    return rows


def engine_rows(engine: EnginePlan) -> list[tuple[str, str]]:
    """What ran: the model in its types, and what the engine notes of its options here."""
    config, spec = engine.config, engine.spec
    weights: str = config.dtype if config.quantization == "none" else config.quantization
    if config.quantization == "none" and spec.quantized is not None:
        weights = "its checkpoint's types"
    size = digits(engine.plan.num_parameters / 1e6, 3)
    name = f"{config.served_model_name}, {size} M parameters"
    rows = [("model", f"{name} in {weights}, keys and values in {config.kv_cache_dtype}")]
    rows += [("note", note) for note in config.notes]
    # Notes repeat what checkpoints say.
    return [(title, harmless(text, sys.stdout)) for title, text in rows]


def partial_rows(partial: bool, done: str) -> list[tuple[str, str]]:
    """What is said of figures that are of a part only."""
    return [("interrupted", f"{done} were done; the figures are of these")] if partial else []


def _within(spread: float | None) -> str:
    return "" if spread is None else f" (best three within {spread:.1%})"


def summary_rows(named: Mapping[str, Summary | None]) -> list[tuple[str, str]]:
    """Times in milliseconds."""
    return [
        (
            name,
            "  ".join(f"{p} {getattr(s, p) * 1e3:.2f}" for p in ("mean", "p50", "p90", "p99"))
            + " ms",
        )
        for name, s in named.items()
        if s is not None
    ]
