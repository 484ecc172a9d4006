"""Asks the HTTP application within the process, so that keys, limits, logs and traces hold for all
calls, whatever way they came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from starlette.types import ASGIApp, Message, Scope

T = TypeVar("T")

_STATUSES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""The names of gRPC's codes for the statuses of HTTP."""

Headers = Sequence[tuple[str, str]]


class CallFailed(Exception):
    """A call that was refused or failed; the text is for the client."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status

    @property
    def code(self) -> str:
        return _STATUSES.get(self.status, "INTERNAL")


@dataclass(frozen=True)
class Caller:
    """Who calls."""

    headers: Headers
    """Those of its metadata that are passed on."""
    client: tuple[str, int] | None


class Application:
    """The HTTP application, as it is asked by this process."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def ask(self, caller: Caller, method: str, path: str, body: bytes = b"") -> Any:
        """The JSON of an answer. Raises CallFailed."""
        parts = [part async for part in self.parts(caller, method, path, body)]
        return msgspec.json.decode(b"".join(parts))

    async def parts(
        self, caller: Caller, method: str, path: str, body: bytes
    ) -> AsyncGenerator[bytes, None]:
        """The answer as it comes. Raises CallFailed for one that refuses."""
        status, refusal = 200, b""
        messages = _messages(self._app, _scope(caller, method, path, body), body)
        async with aclosing(messages):
            async for message in messages:
                if message["type"] == "http.response.start":
                    status = message["status"]
                elif status != 200:
                    refusal += message.get("body", b"")
                elif message.get("body"):
                    yield message["body"]
        if status != 200:
            raise CallFailed(status, _text(refusal))


def _scope(caller: Caller, method: str, path: str, body: bytes) -> Scope:
    headers = [(name.encode("ascii"), value.encode("latin-1")) for name, value in caller.headers]
    if body:
        headers.append((b"content-type", b"application/json"))
    headers.append((b"content-length", str(len(body)).encode()))
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "2",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": caller.client,
        "server": None,
    }


async def items(queue: asyncio.Queue[T], working: asyncio.Future[None]) -> AsyncGenerator[T, None]:
    """What ``working`` puts into the queue, until it is done. Raises what it raised."""
    while True:
        getting = asyncio.ensure_future(queue.get())
        try:
            waited: set[asyncio.Future[Any]] = {getting, working}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            taken = getting.done()
        finally:
            getting.cancel()
        if taken:
            yield getting.result()
        elif queue.empty():
            working.result()
            return


async def _messages(app: ASGIApp, scope: Scope, body: bytes) -> AsyncGenerator[Message, None]:
    """What the application sends. Where this is closed early, the application is told that the
    client left."""
    sent: asyncio.Queue[Message] = asyncio.Queue(1)  # as a slow connection would, it holds up
    left = asyncio.Event()
    asked = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        for message in asked:
            return message
        await left.wait()
        return {"type": "http.disconnect"}

    working = asyncio.ensure_future(app(scope, receive, sent.put))
    whole = False
    try:
        async with aclosing(items(sent, working)) as messages:
            async for message in messages:
                is_body = message["type"] == "http.response.body"
                whole = is_body and not message.get("more_body", False)
                yield message
    finally:
        left.set()
        if not whole:
            working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def _text(refusal: bytes) -> str:
    """The message of an error in this dialect, or in OpenAI's."""
    found = msgspec.json.decode(refusal)["error"]
    return str(found if isinstance(found, str) else found["message"])
