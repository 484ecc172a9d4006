"""``GET /engine/workload``: the requests that were served, in figures or as a trace."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.server.errors import ApiError
from penstock.server.metrics import Counts
from penstock.server.observer import Observer
from penstock.workload.report import ObservedWorkload
from penstock.workload.requests import ObservedRequests
from penstock.workload.summary import summarize
from penstock.workload.trace import encoded

MOST_SECONDS: Final = 10**9
"""The longest ``since``: thirty years."""


class WorkloadReports:
    """Tells what an observer has kept. One report is made at a time, in a thread."""

    def __init__(self, observer: Observer | None, counts: Counts, model: str) -> None:
        """Reports are refused where there is no observer."""
        self._observer = observer
        self._counts = counts
        self._model = model
        self._making = asyncio.Lock()

    async def report(self, request: Request) -> Response:
        """What was observed: in figures, or with ``format=jsonl`` as a trace; with ``since=S``, of
        the requests that arrived in the last S seconds."""
        if self._observer is None:
            raise ApiError(
                404,
                "this server was started with --no-observe, and keeps nothing of its requests",
                code="not_observed",
            )
        asked = dict(request.query_params)
        kind, earliest = asked.pop("format", "json"), _earliest(asked.pop("since", None))
        if asked:
            name = next(iter(asked))[:40]
            raise ApiError(400, f"there is no {name!r}; there are format and since", param=name)
        if kind not in ("json", "jsonl"):
            raise ApiError(400, f"format is json or jsonl, not {kind[:40]!r}", param="format")
        if kind == "jsonl":
            return StreamingResponse(
                self._trace(self._observer, earliest), media_type="application/jsonl"
            )
        async with self._making:
            kept = self._observer.ring.kept()
            summary = await asyncio.to_thread(
                lambda: summarize(ObservedRequests.kept(kept), earliest)
            )
        told = ObservedWorkload(
            model=self._model,
            now=time.time(),
            began=self._observer.began,
            refused_full=self._counts.refused_full,
            workload=summary,
        )
        return Response(msgspec.json.encode(told), media_type="application/json")

    async def _trace(self, observer: Observer, earliest: float) -> AsyncGenerator[bytes, None]:
        async with self._making:
            kept = observer.ring.kept()
            requests = await asyncio.to_thread(ObservedRequests.kept, kept)
        pieces = encoded(requests, earliest)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece


def _earliest(since: str | None) -> float:
    """The earliest arrival that is asked for. Raises ApiError."""
    if since is None:
        return -math.inf
    try:
        seconds = float(since)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MOST_SECONDS:
        raise ApiError(
            400,
            f"since must be a number of seconds up to {MOST_SECONDS:,}, not {since[:40]!r}",
            param="since",
        )
    return time.time() - seconds
