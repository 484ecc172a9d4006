"""Asks the server's own endpoints for a batch, so that checks, limits, logs, counts and traces are
those of any request."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.server.open_requests import REQUEST_ID, OpenRequest
from penstock.server.openai.batches.store import Owner

_OWNER: Final = "penstock.batch_owner"


class Answered(NamedTuple):
    status: int
    request_id: str
    body: bytes


class AsOwner:
    """The ASGI middleware behind the gate that takes the place of the check of keys: a request is
    from the owner of its batch, whose key was checked when that was sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, owner = OpenRequest.of(scope), scope[_OWNER]
        request.key, request.caller = owner.key, owner.caller
        await self._app(scope, receive, send)


class OwnEndpoints:
    """The application, as the runner of batches asks it."""

    def __init__(self, app: ASGIApp) -> None:
        """``app``: a gate, and behind it :class:`AsOwner`."""
        self._app = app

    async def ask(self, owner: Owner, path: str, body: bytes) -> Answered:
        """The whole answer. Where this is cancelled, so is the request."""
        asked = iter([{"type": "http.request", "body": body, "more_body": False}])
        status, request_id = 0, ""
        parts: list[bytes] = []

        async def receive() -> Message:
            for message in asked:
                return message
            await asyncio.get_running_loop().create_future()  # the client never leaves
            raise AssertionError

        async def send(message: Message) -> None:
            nonlocal status, request_id
            if message["type"] == "http.response.start":
                status = message["status"]
                named = dict(message["headers"])
                request_id = named.get(REQUEST_ID.encode(), b"").decode("ascii")
            else:
                parts.append(message.get("body", b""))

        await self._app(_scope(owner, path, len(body)), receive, send)
        return Answered(status, request_id, b"".join(parts))


def _scope(owner: Owner, path: str, length: int) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(length).encode()),
        ],
        "client": None,
        "server": None,
        _OWNER: owner,
    }
