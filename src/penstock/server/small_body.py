"""Bodies of administrators' requests, which are small and may be left out."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request

from penstock.server.body_decoder import BodyDecoder
from penstock.server.body_memory import BodyMemory
from penstock.server.read_body import read_body

Body = TypeVar("Body", bound=msgspec.Struct)


async def small_body(
    request: Request, decoder: BodyDecoder[Body], limit: int, seconds: float
) -> Body:
    """The body as JSON of at most ``limit`` bytes, {} where there is none. Raises ApiError."""
    with BodyMemory(limit).share() as share:
        data = await read_body(request, limit, seconds, share)
    return decoder.decode(data or b"{}").request
