"""Gives every HTTP request an id, registers it, and writes the access log."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.server.keys import PUBLIC, WORKLOAD
from penstock.server.open_requests import IGNORED, REQUEST_ID, OpenRequest, OpenRequests
from penstock.server.page.bundle import FILES

if TYPE_CHECKING:
    from penstock.server.tracing import Tracing

ACCESS_LOG = "penstock.access"
TRACE_HEADERS = ("traceparent", "tracestate")
"""W3C Trace Context headers, with which a client passes on its trace."""
MAX_PATH_CHARS = 200
"""Longest path in the access log, in characters: thousands of lines may wait to be written."""
LEFT = 499
"""Status that is logged when the client left before anything was sent (as in nginx)."""

_log = logging.getLogger(ACCESS_LOG)
_QUIET = (*PUBLIC, "/metrics", WORKLOAD, "/admin/cache/keys")
"""Paths that monitors poll every few seconds, and routers for each request; logged at level debug,
as are the page's files."""


class Gate:
    """The outermost ASGI middleware: assigns request ids and writes the access log."""

    def __init__(
        self, app: ASGIApp, requests: OpenRequests, tracing: Tracing | None, model: str
    ) -> None:
        self._app = app
        self._requests = requests
        self._tracing = tracing
        self._model = model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = self._requests.enter(scope)
        tracing = self._tracing
        traced = tracing is not None and tracing.traces(request)
        if traced:
            request.generations = []
        status = 0

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [(REQUEST_ID.encode(), request.id.encode("ascii"))]
                if request.ignored:
                    headers.append((IGNORED.encode(), ", ".join(request.ignored).encode("ascii")))
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        try:
            await self._app(scope, receive, named)
        finally:
            self._requests.leave(request)
            if traced and tracing is not None:
                tracing.end(request, _trace_headers(scope), status or LEFT, self._model)
            _log_access(request, status)


def _trace_headers(scope: Scope) -> dict[str, str]:
    headers = Headers(scope=scope)
    return {name: headers[name] for name in TRACE_HEADERS if name in headers}


def _log_access(request: OpenRequest, status: int) -> None:
    quiet = request.path in _QUIET or request.path.startswith(FILES)
    level = logging.DEBUG if quiet else logging.INFO
    if not _log.isEnabledFor(level):
        return
    path = request.path
    if len(path) > MAX_PATH_CHARS:
        path = f"{path[:MAX_PATH_CHARS]}... ({len(path)} characters)"
    fields: dict[str, object] = {
        "request_id": request.id,
        "client": request.client,
        "method": request.method,
        "path": path,
        "status": status or LEFT,
        "seconds": round(time.monotonic() - request.began, 6),
    }
    if request.key is not None:
        fields["key"] = request.key
    fields |= request.notes
    _log.log(level, "%s %s %d", request.method, path, status or LEFT, extra={"fields": fields})
