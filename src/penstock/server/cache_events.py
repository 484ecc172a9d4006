"""What an engine's cache holds, as a stream of events for routers."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncGenerator
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.engine.ipc.wire import CacheReply
from penstock.errors import EngineDeadError
from penstock.server.errors import ApiError
from penstock.server.open_requests import OpenRequests
from penstock.server.openapi import Endpoint
from penstock.server.sse import EventStream, error_event, event
from penstock.server.supervisor import Supervisor

ASK_S: Final = 0.05
"""Seconds between two looks at the engine's cache: what a router knows is older by at most this and
the engine's step."""
QUIET_S: Final = 2.0
"""An event comes at least so often, also when nothing has changed: a router takes a silent server
for one that is gone."""

_POSITION = re.compile(r"[0-9]{1,18}", re.ASCII)


class CacheEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of the prefixes that can be found in an engine's cache.

    Keys are those of blocks, 16 bytes each, one behind the other, in base64. A follower that is at
    another position than ``since``, or in another epoch, has missed something: it connects again.
    """

    epoch: str
    """The engine's life. After a restart there is another one, and its cache is empty."""
    since: int | None
    """The position that the changes follow; null: ``added`` are all keys there are."""
    until: int
    """The position after these changes, for ``after`` of the next connection."""
    added: bytes
    removed: bytes


class CacheEvents:
    """The handler of ``GET /admin/cache/events``."""

    def __init__(self, engine: Supervisor, requests: OpenRequests) -> None:
        self._engine = engine
        self._requests = requests

    def endpoint(self) -> Endpoint:
        return Endpoint(
            "GET",
            "/admin/cache/events",
            self.cache_events,
            "The keys of the blocks that can be found in the cache, and how they change.",
            None,
            event=CacheEvent,
            query={
                "epoch": {"type": "string", "maxLength": 64},
                "after": {"type": "integer", "minimum": 0},
            },
            access="admin",
        )

    async def cache_events(self, request: Request) -> Response | EventStream:
        """All keys and then their changes; with ``epoch`` and ``after``, the ``until`` of an event,
        the changes since then, as far as they are known."""
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        epoch, after = request.query_params.get("epoch", ""), request.query_params.get("after")
        if after is not None and not _POSITION.fullmatch(after):
            raise ApiError(
                400, "after must be the 'until' of an event, a whole number", param="after"
            )
        position = None if after is None else int(after)
        return EventStream(request, self._events(epoch, position), error_event)

    async def _events(self, epoch: str, position: int | None) -> AsyncGenerator[bytes, None]:
        told = -math.inf
        while not self._requests.stopping or len(self._requests):
            reply = await self._ask(epoch, position)
            now = time.monotonic()
            if reply is not None and (
                reply.since is None or reply.until != reply.since or now - told >= QUIET_S
            ):
                epoch, position, told = reply.epoch, reply.until, now
                changed = CacheEvent(
                    epoch=reply.epoch,
                    since=reply.since,
                    until=reply.until,
                    added=reply.added,
                    removed=reply.removed,
                )
                yield event(msgspec.json.encode(changed))
            await asyncio.sleep(ASK_S)

    async def _ask(self, epoch: str, position: int | None) -> CacheReply | None:
        """None while there is no engine; the next one has an epoch of its own."""
        try:
            return await self._engine.llm.cache_changes(epoch, position)
        except EngineDeadError:
            return None
