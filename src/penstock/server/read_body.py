"""Reading the body of a request, within limits of size and time."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from penstock.server.openai.errors import ApiError, body_timeout


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """The whole body, of ``limit`` bytes at most. Raises ApiError 413 or 408."""
    try:
        async with asyncio.timeout(seconds):
            return await _read(request, limit)
    except TimeoutError:
        raise body_timeout(seconds) from None


async def _read(request: Request, limit: int) -> bytes:
    too_long = ApiError(
        413, f"the body is longer than the {limit} bytes that this server takes", close=True
    )
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise too_long
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise too_long
    return bytes(body)
