"""What a server tells of its workload."""

from __future__ import annotations

import msgspec

from penstock.workload.summary import WorkloadSummary


class ObservedWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a server that have ended, as far as they are kept. Times are in seconds since
    the epoch."""

    model: str
    now: float
    began: float
    """When observing began: at the server's start."""
    refused_full: int
    """Requests that the full queue refused since then, which are not among the others."""
    workload: WorkloadSummary
