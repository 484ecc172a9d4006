"""The trace that is simulated or tuned for, and what its options rule out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.parser import UsageError
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.bench.load.trace_files import TraceScale
    from penstock.bench.load.workload import RecordedWorkload


def check_times(rate: object, speed: object, arrivals: str | None) -> None:
    """Raise UsageError for a rate (None: none) beside a speed of the trace, and for arrivals
    without a rate."""
    if rate is not None and speed is not None:
        raise UsageError("arguments --rate, --speed: a rate takes the place of the trace's times")
    if rate is None and arrivals is not None:
        raise UsageError(f"argument --arrivals: {arrivals} needs a --rate")


def replayed(path: Path, scale: TraceScale, limit: int | None) -> RecordedWorkload:
    """The first requests of a trace. Raises ConfigError for a file that is none, and OSError."""
    from penstock.bench.load.trace_files import is_trace, read_trace

    if not is_trace(path):
        raise ConfigError(
            f"{path} is no trace: it has no input_length (Mooncake's form, .jsonl), and is no .csv "
            "of Azure's or BurstGPT's columns"
        )
    return read_trace(path, scale, limit)
