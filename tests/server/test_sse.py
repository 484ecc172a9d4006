"""What an event stream sends, as ASGI has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request

from penstock.server.errors import ApiError
from penstock.server.open_requests import _SCOPE_KEY, OpenRequest
from penstock.server.sse import EventStream, error_event, event


def sent(events: AsyncIterator[bytes]) -> list[tuple[int | None, bytes]]:
    """Status and body of each message that a stream of these events sends."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        scope: dict[str, Any] = {"type": "http"}
        scope[_SCOPE_KEY] = OpenRequest("1", "GET", "/", "here", loop.create_future())
        await EventStream(Request(scope), events, error_event)(scope, receive, send)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        messages.append(message)

    messages: list[Any] = []
    asyncio.run(run())
    first, *others = messages
    assert first["type"] == "http.response.start"
    assert {other["type"] for other in others} == {"http.response.body"}
    assert [other.get("more_body", False) for other in others] == [True] * (len(others) - 1) + [
        False
    ]
    return [(message.get("status"), message.get("body", b"")) for message in messages]


async def stream(*events: bytes, end: Exception | None = None) -> AsyncIterator[bytes]:
    for one in events:
        yield one
    if end is not None:
        raise end


@pytest.mark.parametrize("events", [(), (event(b"1"), event(b"2"))])
def test_a_stream_has_a_head_and_an_end(events: tuple[bytes, ...]) -> None:
    """One without any event, too: a watcher that comes while the server stops gets it."""
    bodies: list[tuple[int | None, bytes]] = [(None, one) for one in events]
    assert sent(stream(*events)) == [(200, b""), *bodies, (None, b"")]


def test_what_fails_before_the_first_event_has_a_status_of_its_own() -> None:
    first, (_, body) = sent(stream(end=ApiError(503, "gone")))
    assert first == (503, b"")
    assert b"gone" in body


def test_what_fails_later_is_an_event() -> None:
    (status, _), one, (_, told), last = sent(stream(event(b"1"), end=ApiError(503, "gone")))
    assert (status, one, last) == (200, (None, event(b"1")), (None, b""))
    assert told.startswith(b"data: ")
    assert b"gone" in told
