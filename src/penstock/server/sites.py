"""Refuses requests that web pages of other sites make a browser send.

A page of any site can make a browser send requests to this machine. Bodies that need no consent of
ours are refused by their type (``read_body``). Two ways remain: a page whose name was made to point
here after it was loaded (DNS rebinding) may send and read anything, but its requests carry that
name in ``Host``; and whatever a browser sends for a page carries ``Origin``.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.server.errors import ApiError
from penstock.server.hosts import ANY, HostRule, split_host
from penstock.server.keys import PUBLIC

_DEFAULT_PORTS = {"http": 80, "https": 443}


class SiteCheck:
    """ASGI middleware that refuses requests sent by pages of other sites."""

    def __init__(
        self,
        app: ASGIApp,
        hosts: HostRule | None,
        origins: Collection[str],
        keys_needed: bool,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = origins
        self._check_origin = not keys_needed and ANY not in origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] == "http" and scope["path"] not in PUBLIC:
                self._check(scope)
        except ApiError as error:
            await error.response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host")  # HTTP/1.0 has none, and no browser speaks it
        if self._hosts is not None and host is not None and not self._hosts.takes(host):
            found = split_host(host)
            name = host if found is None else found[0]
            raise ApiError(
                421,
                f"the request's Host header is {host!r}, which is no name of this server; if it "
                f"should be one, start the server with --allowed-host {name}",
                type="permission_error",
                code="host_not_allowed",
            )
        if not self._check_origin or scope["method"] != "POST":
            return
        origins = headers.getlist("origin")
        origin = ", ".join(origins) if origins else None  # browsers send one
        if origin is None or origin in self._origins or _same(origin, host):
            return
        raise ApiError(
            403,
            f"pages of {origin!r} may not use this server; if they should, start it with "
            f"--cors-origin {origin}",
            type="permission_error",
            code="origin_not_allowed",
        )


class Cors(CORSMiddleware):
    """Starlette's CORS middleware, with refusals in OpenAI's format."""

    def preflight_response(self, request_headers: Headers) -> Response:
        answer = super().preflight_response(request_headers)
        if answer.status_code == 200:
            return answer
        trouble = bytes(answer.body).decode()
        refused = ApiError(
            400,
            f"the browser's question whether a page of {request_headers['origin']!r} may ask this "
            f"server: {trouble}; allow an origin with --cors-origin",
            code="preflight_refused",
        ).response()
        names = ("vary", "access-control-allow-origin", "access-control-allow-methods")
        refused.headers.update({k: answer.headers[k] for k in names if k in answer.headers})
        return refused


def _same(origin: str, host: str | None) -> bool:
    """Whether the page came from this server, perhaps through a proxy with another scheme."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    default = _DEFAULT_PORTS.get(parts.scheme)
    theirs, ours = split_host(parts.netloc), split_host(host or "")
    if theirs is None or ours is None or default is None:
        return False
    return (theirs[0], theirs[1] or default) == (ours[0], ours[1] or default)
