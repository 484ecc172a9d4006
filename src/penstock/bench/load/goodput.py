"""Which requests of a load met a service level."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.bench.load.record import RequestRecord
from penstock.service_level import Limit


def good(record: RequestRecord, limits: Sequence[Limit]) -> bool:
    """Whether a request's answer is whole and within all limits."""
    return record.ok and all(limit.met(record) for limit in limits)
