"""The server's options, without those of its engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.parsing.styles import AUTO
from penstock.server.hosts import HostRule
from penstock.server.keys import Keys
from penstock.server.metric_families import MetricNames
from penstock.service_level import Limit

MAX_BODY_BYTES = 32 << 20
"""Four million prompt tokens as JSON numbers, or as much text as any context holds."""
BODY_TIMEOUT_S = 60.0
"""Seconds for the whole body of a request: half a megabyte a second at the largest that is
taken."""
SLO_MEASURES = ("ttft", "tpot", "e2el")
"""Those of a service level that a server can tell, from a request's arrival on."""


@dataclass(frozen=True)
class ServerOptions:
    max_body_bytes: int = MAX_BODY_BYTES
    body_timeout_s: float = BODY_TIMEOUT_S
    keys: Keys = Keys()  # noqa: RUF009
    cors_origins: tuple[str, ...] = ()
    log_prompts: bool = False
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO
    page: bool = True
    """Whether there is a page for browsers."""
    observe: bool = True
    """Whether lengths, times and hashed prefixes of requests are kept for /engine/workload."""
    hosts: HostRule | None = None
    """Which Host headers are taken; None takes all."""
    metric_names: MetricNames = MetricNames.PENSTOCK
    """What stands before the names of metrics."""
    slo: tuple[Limit, ...] = ()
    """What answers are to keep to: those that do are counted (``SLO_MEASURES``)."""
    batch_dir: Path | None = None
    """Where files and batches are kept; None: nowhere, and there are none."""
    restarts: int = 0
    """How many servers of this socket died before this one."""
