"""Errors in Ollama's shape: ``{"error": "..."}``."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from penstock.server.errors import ApiError


class ErrorLine(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request is refused, or the last line of a stream that ends early."""

    error: str
    code: str | UnsetType = UNSET
    """An extension: what OpenAI's clients are told, which is more precise."""


def body(failure: ApiError) -> bytes:
    """The body of a response that refuses a request."""
    said = failure.body.error
    return msgspec.json.encode(ErrorLine(error=said.message, code=said.code or UNSET))


def line(failure: ApiError) -> bytes:
    """The last line of a stream that ends early."""
    return body(failure) + b"\n"
