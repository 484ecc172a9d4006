"""What a connection is told that there is no room for."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.server.errors import ApiError

RETRY_AFTER_S = 5


def refusing(app: ASGIApp) -> ASGIApp:
    """``app`` for ``/health``, since the process lives, and status 503 for everything else."""

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
