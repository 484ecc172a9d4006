"""Errors in Text Generation Inference's shape: ``{"error", "error_type"}``."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from penstock.server import sse
from penstock.server.errors import ApiError
from penstock.server.tgi.protocol import ErrorType, TgiError


def body(failure: ApiError) -> bytes:
    """The body of a response that refuses a request."""
    said = failure.body.error
    error = TgiError(error=said.message, error_type=_kind(failure.status), code=said.code or UNSET)
    return msgspec.json.encode(error)


def event(failure: ApiError) -> bytes:
    """The last event of a stream that ends early."""
    return sse.event(body(failure))


def _kind(status: int) -> ErrorType:
    """What clients of the dialect call an error with this status."""
    if status in (429, 503):
        return "overloaded"
    return "validation" if status < 500 else "generation"
