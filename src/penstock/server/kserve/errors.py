"""Errors in the dialect's shape: ``{"error": "..."}``."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from penstock.server import sse
from penstock.server.errors import ApiError
from penstock.server.kserve.protocol import InferenceError


def body(failure: ApiError) -> bytes:
    """The body of a response that refuses a request."""
    said = failure.body.error
    return msgspec.json.encode(InferenceError(said.message, said.code or UNSET))


def event(failure: ApiError) -> bytes:
    """The last event of a stream that ends early."""
    return sse.event(body(failure))
