"""``GET /engine/workload``: the requests that were served, in figures or as a trace."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.server.errors import ApiError
from penstock.server.metrics import Counts
from penstock.server.observer import Observer
from penstock.workload.report import ObservedWorkload
from penstock.workload.requests import ObservedRequests
from penstock.workload.summary import summarize
from penstock.workload.trace import encoded

MOST_SECONDS: Final = 10**9
"""The longest ``since``: thirty years."""
MOST_TRACES: Final = 4
"""Traces that are sent at a time: each holds up to 42 MB until its client has taken it."""


class WorkloadReports:
    """Tells what an observer has kept.

    Figures and columns of a trace are made in a thread, one after the other. ``MOST_TRACES`` traces
    are then sent at a time, as fast as their clients take them; further ones are refused.
    """

    def __init__(self, observer: Observer | None, counts: Counts, model: str) -> None:
        """Reports are refused where there is no observer."""
        self._observer = observer
        self._counts = counts
        self._model = model
        self._making = asyncio.Lock()
        self._traces = 0

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
            return self._sent(self._observer, earliest)
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

    def _sent(self, observer: Observer, earliest: float) -> Response:
        if self._traces >= MOST_TRACES:
            raise ApiError(
                429,
                f"{MOST_TRACES} traces are being sent, and no more are at a time; ask again when "
                "one of them is done",
                type="rate_limit_error",
                code="too_many_traces",
            )
        self._traces += 1
        return _Trace(self._pieces(observer, earliest), self._sent_one)

    def _sent_one(self) -> None:
        self._traces -= 1

    async def _pieces(self, observer: Observer, earliest: float) -> AsyncGenerator[bytes, None]:
        pieces = encoded(await self._columns(observer, earliest))
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece

    async def _columns(self, observer: Observer, earliest: float) -> ObservedRequests:
        async with self._making:
            kept = observer.ring.kept()
            return await asyncio.to_thread(lambda: ObservedRequests.kept(kept).since(earliest))


class _Trace(StreamingResponse):
    """A trace that is sent; tells when it no longer is, wherever that ends."""

    def __init__(self, pieces: AsyncGenerator[bytes, None], done: Callable[[], None]) -> None:
        super().__init__(pieces, media_type="application/jsonl")
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._done()


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
