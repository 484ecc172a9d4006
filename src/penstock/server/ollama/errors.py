"""Errors in Ollama's shape: ``{"error": "..."}``."""

from __future__ import annotations

import msgspec

from penstock.server.errors import ApiError
from penstock.server.ollama.protocol import ErrorLine


def body(failure: ApiError) -> bytes:
    """The body of a response that refuses a request."""
    return msgspec.json.encode(ErrorLine(error=failure.body.error.message))


def line(failure: ApiError) -> bytes:
    """The last line of a stream that ends early."""
    return body(failure) + b"\n"
