"""Responses on connections beyond the limit."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.server.errors import ApiError

RETRY_AFTER_S = 5


def refusing(app: ASGIApp) -> ASGIApp:
    """Wrap ``app``: ``/health`` is answered, since the process lives; all else gets status 503."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/health":
            await app(scope, receive, send)
            return
        refusal = ApiError(
            503,
            "as many connections are open as this server has room for; send the request again "
            "later, on a connection that is kept",
            type="server_error",
            code="too_many_connections",
            retry_after_s=RETRY_AFTER_S,
            close=True,
        )
        await refusal.response()(scope, receive, send)

    return answer
