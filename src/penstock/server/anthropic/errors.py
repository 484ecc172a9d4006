"""Errors in Anthropic's shape: ``{"type": "error", "error": {"type", "message"}}``."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from penstock.server.anthropic.protocol import ErrorDetail, ErrorMessage, MessageEvent
from penstock.server.errors import ApiError

_KINDS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""What clients of the dialect call an error, by its status."""


def detail(failure: ApiError) -> ErrorDetail:
    """What a response or an event says of ``failure``."""
    other = "invalid_request_error" if failure.status < 500 else "api_error"
    return ErrorDetail(
        type=_KINDS.get(failure.status, other),
        message=failure.body.error.message,
        code=failure.body.error.code or UNSET,
    )


def body(failure: ApiError) -> bytes:
    """The body of a response that refuses a request."""
    return msgspec.json.encode(ErrorMessage(error=detail(failure)))


def event(failure: ApiError) -> bytes:
    """The last event of a stream that ends early."""
    data = msgspec.json.encode(MessageEvent(type="error", error=detail(failure)))
    return b"event: error\ndata: " + data + b"\n\n"
