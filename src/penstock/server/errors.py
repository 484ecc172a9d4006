"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from penstock.errors import (
    ContextLengthError,
    EngineDeadError,
    OverloadedError,
    PenstockError,
    RequestError,
    UnavailableError,
)
from penstock.server.fanout import GenerationError

RETRY_AFTER_S = 10
"""Seconds for the Retry-After header of a 429 or 503 where no better estimate is known."""
MAX_MESSAGE_CHARS = 480
"""Longest error message, in characters: it may quote a request of megabytes."""
MAX_PARAM_CHARS = 120


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct, frozen=True):
    error: ErrorBody


class ApiError(PenstockError):
    """An error response: the HTTP status and the body that explains it.

    ``close`` ends the connection after the response, where the rest of the request would follow.
    Without ``retry``, a header asks OpenAI's clients not to retry by themselves.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int = RETRY_AFTER_S,
        close: bool = False,
        retry: bool = True,
    ) -> None:
        message = _shortened(message, MAX_MESSAGE_CHARS)
        super().__init__(message)
        self.status = status
        if param is not None:
            param = _shortened(param, MAX_PARAM_CHARS)
        self.body = ErrorResponse(ErrorBody(message, type, param, code))
        self._retry_after_s = retry_after_s
        self._close = close
        self._retry = retry

    def json(self) -> bytes:
        return msgspec.json.encode(self.body)

    def response(self, body: bytes | None = None) -> Response:
        """The response, with the JSON ``body`` of another dialect than OpenAI's if given."""
        headers = {}
        if self.status in (429, 503):
            headers["retry-after"] = str(self._retry_after_s)
        if not self._retry:
            headers["x-should-retry"] = "false"
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self._close:
            headers["connection"] = "close"
        content = self.json() if body is None else body
        return Response(content, self.status, headers=headers, media_type="application/json")


def _shortened(text: str, limit: int) -> str:
    """Return ``text``, with its middle left out if it is longer than ``limit`` characters."""
    if len(text) <= limit:
        return text
    end = limit // 3
    return f"{text[: limit - end - 5]} ... {text[-end:]}"


def api_error(error: Exception) -> ApiError:
    """Convert ``error`` for the client; errors that the client did not cause become a 5xx."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        code = "context_length_exceeded" if isinstance(error, ContextLengthError) else None
        param = "n" if error.param == "beam_width" else error.param  # as requests have it
        return ApiError(400, str(error), param=param, code=code)
    if isinstance(error, OverloadedError):
        return overloaded(str(error), RETRY_AFTER_S)
    if isinstance(error, UnavailableError):
        return unavailable(str(error), "worker_unavailable", RETRY_AFTER_S)
    if isinstance(error, EngineDeadError):
        # The cause may hold a traceback: it belongs in the server's log.
        return ApiError(
            503,
            "the engine has stopped before the answer was complete; send the request again later",
            type="server_error",
            code="engine_dead",
        )
    if isinstance(error, GenerationError):
        return ApiError(500, str(error), type="server_error", code="generation_failed")
    return ApiError(500, "internal error; the server's log says more", type="server_error")


def model_not_found(asked: str, served: str) -> ApiError:
    return ApiError(
        404,
        f"the model {asked!r} does not exist here; this server serves {served!r}",
        type="not_found_error",
        param="model",
        code="model_not_found",
    )


def overloaded(message: str, retry_after_s: int) -> ApiError:
    return ApiError(
        429, message, type="rate_limit_error", code="queue_full", retry_after_s=retry_after_s
    )


def unavailable(reason: str, code: str, retry_after_s: int) -> ApiError:
    """Return a 503: the server takes no work now; ``reason`` says why."""
    return ApiError(503, reason, type="server_error", code=code, retry_after_s=retry_after_s)


def deadline_exceeded(seconds: float) -> ApiError:
    return ApiError(
        504,
        f"the request was not done within {seconds:g} s and was stopped",
        type="server_error",
        code="deadline_exceeded",
        retry=False,
    )


def aborted() -> ApiError:
    return ApiError(
        500,
        "the request was stopped by an administrator",
        type="server_error",
        code="aborted",
        retry=False,
    )


def body_timeout(seconds: float) -> ApiError:
    return ApiError(
        408,
        f"the body of the request did not arrive within {seconds:g} s",
        code="body_timeout",
        close=True,
    )
