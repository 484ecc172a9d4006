"""Errors in llama-server's shape: ``{"error": {"code", "message", "type"}}``."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from penstock.server import sse
from penstock.server.errors import ApiError
from penstock.server.llama.protocol import LlamaError, LlamaErrorDetail


def body(failure: ApiError) -> bytes:
    """The body of a response that refuses a request."""
    said = failure.body.error
    detail = LlamaErrorDetail(
        code=failure.status, message=said.message, type=said.type, reason=said.code or UNSET
    )
    return msgspec.json.encode(LlamaError(error=detail))


def event(failure: ApiError) -> bytes:
    """The last event of a stream that ends early."""
    return sse.event(body(failure))
