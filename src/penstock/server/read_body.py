"""Reading a request body within limits of size and time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request

from penstock.server.body_memory import Share
from penstock.server.errors import ApiError, body_timeout

Reader = Callable[[Request, int, float, Share], Coroutine[Any, Any, bytes]]
"""Reads a body of at most so many bytes within so many seconds, as :func:`read_body` does."""

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_JSON = re.compile(rf"application/({_TOKEN}\+)?json")
_PARAMETER = re.compile(
    rf"""[ \t]*;[ \t]*(?:(?P<name>{_TOKEN})=(?P<value>{_TOKEN}|"(?:[^"\\]|\\.)*"))?[ \t]*(?=;|\Z)"""
)


async def read_body(request: Request, limit: int, seconds: float, share: Share) -> bytes:
    """Return the whole JSON body, at most ``limit`` bytes, which are taken from ``share``.

    Raises ApiError 415, 413, 408 or 503.
    """
    _check_type(request.headers)
    try:
        async with asyncio.timeout(seconds):
            return await _read(request, limit, share)
    except TimeoutError:
        raise body_timeout(seconds) from None


def reading_also(*types: str) -> Reader:
    """As :func:`read_body`, for clients that do not say what they send: also a body without a type,
    or of one of ``types``.

    A page of another site could make a browser send one without our consent; but where pages could
    do harm, which is where no key is needed, their ``Origin`` is refused (``sites.py``).
    """

    async def read(request: Request, limit: int, seconds: float, share: Share) -> bytes:
        given = request.headers.getlist("content-type")
        if given and (len(given) > 1 or given[0] not in types):
            return await read_body(request, limit, seconds, share)
        _check_encoding(request.headers)
        return await read_any_body(request, limit, seconds, share)

    return read


async def _read(request: Request, limit: int, share: Share) -> bytes:
    too_long = ApiError(
        413, f"the body is longer than the {limit} bytes that this server takes", close=True
    )
    announced = request.headers.get("content-length", "")
    if announced.isdecimal():
        if int(announced) > limit:
            raise too_long
        share.check(int(announced))
    body = bytearray()
    async for chunk in request.stream():
        if len(body) + len(chunk) > limit:
            raise too_long
        share.take(len(chunk))
        body += chunk
    return bytes(body)


async def read_any_body(request: Request, limit: int, seconds: float, share: Share) -> bytes:
    """As :func:`read_body`, for a body of any type. Raises ApiError 413, 408 or 503."""
    try:
        async with asyncio.timeout(seconds):
            return await _read(request, limit, share)
    except TimeoutError:
        raise body_timeout(seconds) from None


def _check_type(headers: Headers) -> None:
    """Raise ApiError 415 unless the body, where there is one, is said to be JSON in UTF-8.

    A browser sends what is said to be JSON for a page of another site only with our consent
    (CORS), but text and forms, and bodies without a type, without any.
    """
    if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
        return
    given = headers.getlist("content-type")
    if len(given) != 1:
        fault = "it has none" if not given else "it has several"
        raise _unsupported(f"the Content-Type of the body must be application/json, and {fault}")
    if given[0] != "application/json":
        check_json_type(given[0])
    _check_encoding(headers)


def _check_encoding(headers: Headers) -> None:
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise ApiError(
            415,
            f"the body must not be compressed, and its Content-Encoding is {encoding!r}",
            code="unsupported_media_type",
        )


def check_json_type(content_type: str) -> None:
    """Raise ApiError 415 unless this Content-Type is one of JSON in UTF-8 (RFC 9110, 8.3)."""
    kind, *rest = re.split(r"[ \t]*(?=;)", content_type, maxsplit=1)
    if not _JSON.fullmatch(kind.lower()):
        raise _unsupported(
            f"the Content-Type of the body must be application/json, and it is {content_type!r}"
        )
    parameters = rest[0] if rest else ""
    charset, at = None, 0
    while at < len(parameters):
        found = _PARAMETER.match(parameters, at)
        if found is None:
            raise _unsupported(f"the parameters of the Content-Type {content_type!r} are malformed")
        at = found.end()
        name, value = (found["name"] or "").lower(), found["value"]
        if name.startswith("charset*") or (name == "charset" and charset is not None):
            raise _unsupported(
                f"the Content-Type {content_type!r} must name one charset, as charset=utf-8"
            )
        if name == "charset":
            charset = value.strip('"').lower()
    if charset not in (None, "utf-8", "utf8", "us-ascii"):
        raise _unsupported(f"the body must be JSON in UTF-8, and its charset is {charset!r}")


def _unsupported(trouble: str) -> ApiError:
    return ApiError(
        415,
        f"{trouble}; send the header 'Content-Type: application/json' (curl: "
        "-H 'Content-Type: application/json')",
        code="unsupported_media_type",
    )
