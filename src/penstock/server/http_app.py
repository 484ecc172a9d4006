"""What HTTP applications have in common: errors in OpenAI's shape, and what browsers may ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from penstock.server.errors import ApiError
from penstock.server.open_requests import IGNORED, REQUEST_ID
from penstock.server.sites import Cors
from penstock.server.sse import ClientGone, explained

A = TypeVar("A")
Handler = Callable[[Request], Awaitable[A]]


def answered(
    handler: Handler[A], error_body: Callable[[ApiError], bytes] = ApiError.json
) -> Handler[A | Response]:
    """Wrap ``handler`` so that its errors become responses, whose bodies ``error_body`` writes."""

    async def answer(request: Request) -> A | Response:
        try:
            return await handler(request)
        except (ClientGone, ClientDisconnect):
            return Response(status_code=499)  # nobody reads it
        except Exception as error:
            failure = explained(error)
            return failure.response(error_body(failure))

    return answer


def http_errors(there_is: str = "") -> Mapping[Any, Callable[[Request, Exception], Any]]:
    """The handlers of errors that no handler of ours raised; ``there_is`` says to who asked for
    what is not there what is."""

    async def handle(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path
        if error.status_code == 405:
            message = f"{request.method} is not allowed on {path}"
        elif error.status_code == 404:
            message = f"there is nothing at {path}{there_is}"
        else:
            message = error.detail
        answer = ApiError(error.status_code, message).response()
        answer.headers.update(error.headers or {})
        return answer

    return {HTTPException: handle}


def cors(origins: Sequence[str], methods: Sequence[str] = ("GET", "POST")) -> list[Middleware]:
    """What lets pages of these origins ask from a browser; nothing if there are none."""
    if not origins:
        return []
    return [
        Middleware(
            Cors,
            allow_origins=origins,
            allow_methods=methods,
            # Whatever a client names: OpenAI's sends a dozen of its own, and more with each
            # version. The origin is what is checked; unknown headers do nothing.
            allow_headers=["*"],
            expose_headers=[REQUEST_ID, IGNORED, "Retry-After", "X-Should-Retry"],
        )
    ]
