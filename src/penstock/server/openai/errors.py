"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from penstock.errors import EngineDeadError, PenstockError, RequestError
from penstock.server.fanout import GenerationError


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct, frozen=True):
    error: ErrorBody


class ApiError(PenstockError):
    """An answer other than 200: the HTTP status and the body that says why."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = ErrorResponse(ErrorBody(message, type, param, code))

    def json(self) -> bytes:
        return msgspec.json.encode(self.body)

    def response(self) -> Response:
        headers = {"retry-after": "30"} if self.status == 503 else None
        return Response(self.json(), self.status, headers=headers, media_type="application/json")


def api_error(error: Exception) -> ApiError:
    """``error`` as the client sees it; what is not the client's doing is a 5xx."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(400, str(error), param=error.param)
    if isinstance(error, EngineDeadError):
        # The cause may hold a traceback: it belongs in the server's log.
        return ApiError(
            503,
            "the engine has stopped and this server must be restarted; its log says why",
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
