"""A table of requests, as comma-separated values."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Final

from penstock.bench.load.document import LoadedRun

_FIELDS: Final = (
    *("index", "conversation", "turn", "pattern", "scheduled_s", "sent_s", "headers_s", "end_s"),
    *("ttft_s", "ttfo_s", "ttst_s", "tpot_s", "e2el_s"),
    *("input_tokens_asked", "output_tokens_asked", "input_tokens", "output_tokens"),
    *("cached_tokens", "reasoning_tokens", "finish_reason", "status", "error", "message"),
)


def request_table(runs: Sequence[LoadedRun]) -> bytes:
    """One line for each request of all runs; ``run`` is the run's index."""
    text = io.StringIO(newline="")
    rows = csv.writer(text)
    rows.writerow(("run", "rate", "concurrency", *_FIELDS))
    for number, run in enumerate(runs):
        for record in run.requests:
            values = [getattr(record, name) for name in _FIELDS]
            rows.writerow(
                (
                    number,
                    run.rate,
                    run.concurrency,
                    *(f"{v:.6f}" if isinstance(v, float) else v for v in values),
                )
            )
    return text.getvalue().encode()
