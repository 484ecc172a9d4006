"""Responses that end when the client disconnects: server-sent events and plain ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from penstock.server.connection import PieceWriter
from penstock.server.errors import ApiError, api_error
from penstock.server.open_requests import OpenRequest

T = TypeVar("T")
Events = AsyncIterator[bytes]
ErrorWriter = Callable[[ApiError], bytes]
"""A dialect's form of an error."""

DONE = b"data: [DONE]\n\n"
EVENTS = "text/event-stream; charset=utf-8"
LINES = "application/x-ndjson"

LAST_WORDS_S = 5.0
"""Seconds to wait for a slow client when telling it why its stream ends."""

_log = logging.getLogger(__name__)


class ClientGone(Exception):
    """The client closed the connection, so there is nobody to answer."""


def event(data: bytes) -> bytes:
    """Format one server-sent event. ``data`` is JSON without line breaks."""
    return b"data: " + data + b"\n\n"


def error_event(failure: ApiError) -> bytes:
    """The event that says why a stream ends early, as OpenAI's clients read it."""
    return event(failure.json())


async def unless_ended(request: Request, receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``, but cancel it when the client disconnects or the request is ended.

    Raises ClientGone for the first and the ApiError of :attr:`OpenRequest.ended` for the second.
    The body of the request must have been read. Whatever way this ends, ``work`` has ended too,
    its ``finally`` blocks included.
    """
    ended = OpenRequest.of(request.scope).ended
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnect(receive))
    try:
        waited: set[asyncio.Future[Any]] = {working, leaving, ended}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if ended.done():
            raise ended.result()
        raise ClientGone
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


class EventStream:
    """An ASGI answer that sends events as they come: server-sent events, or lines.

    Nothing is sent before the first event exists, so that what fails until then has its own status
    code, and a body that ``error_body`` writes. What fails later is reported in an event of its
    own, which ``error_event`` writes whole, and the stream ends without ``[DONE]``.
    """

    def __init__(
        self,
        request: Request,
        events: Events,
        error_event: ErrorWriter,
        error_body: ErrorWriter = ApiError.json,
        media_type: str = EVENTS,
    ) -> None:
        self._request = request
        self._events = events
        self._error_event = error_event
        self._error_body = error_body
        self._media_type = media_type
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_ended(self._request, receive, self._send(scope, receive, send))
        except (ClientGone, OSError):
            OpenRequest.of(scope).notes["left"] = True
        except ApiError as failure:
            OpenRequest.of(scope).notes["ended"] = failure.body.error.code
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(LAST_WORDS_S):
                    await self._fail(failure, scope, receive, send)

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        pieces = PieceWriter.of(scope)
        async with aclosing(self._events) as events:  # type: ignore[type-var]
            try:
                async for data in events:
                    if not self._started:
                        await self._start(send)
                    if pieces is not None:
                        await pieces.write(data)
                    else:
                        await send({"type": "http.response.body", "body": data, "more_body": True})
            except OSError:
                raise  # the connection's, not the engine's
            except Exception as error:
                await self._fail(explained(error), scope, receive, send)
                return
        if not self._started:  # there was no event
            await self._start(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send) -> None:
        self._started = True
        await send(_start(self._media_type))

    async def _fail(self, failure: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._started:
            await failure.response(self._error_body(failure))(scope, receive, send)
            return
        data = self._error_event(failure)
        await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def explained(error: Exception) -> ApiError:
    """``error`` for the client; one that is a defect of ours also goes to the log, whole."""
    failure = api_error(error)
    if failure.status == 500 and error is not failure:
        _log.error("a request failed", exc_info=error)
    return failure


def _start(media_type: str) -> Message:
    return {
        "type": "http.response.start",
        "status": 200,
        "headers": [
            (b"content-type", media_type.encode("ascii")),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # nginx would hold events back
        ],
    }


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
