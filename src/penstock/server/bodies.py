"""Reading and decoding request bodies without delaying other requests."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

import msgspec
from starlette.requests import Request

from penstock.server.body_decoder import Decoded
from penstock.server.body_memory import BODIES_BYTES, BodyMemory
from penstock.server.read_body import Reader, read_body

Body = TypeVar("Body", bound=msgspec.Struct)

MAX_IN_LOOP_BYTES = 256 << 10
"""Largest body decoded in the event loop itself: about a millisecond, at worst 80 (lists of empty
lists)."""


class Decoder(Protocol[Body]):
    """Makes a request of the bytes of a body. Raises ApiError for those that are none."""

    def decode(self, body: bytes) -> Decoded[Body]: ...


class Bodies:
    """Reads and decodes the bodies of one server's requests.

    A long body is decoded in a thread, so that other requests go on; one at a time, since several
    would only compete for the interpreter. The memory of all bodies that are read or waiting is
    bounded: a long one that does not fit is refused.
    """

    def __init__(self, limit: int, seconds: float, memory: int = BODIES_BYTES) -> None:
        self._limit = limit
        self.memory = BodyMemory(max(memory, limit))
        self._seconds = seconds
        self._decoding = asyncio.Lock()

    async def decoded(
        self, request: Request, decoder: Decoder[Body], read: Reader = read_body
    ) -> Decoded[Body]:
        """Return the decoded body. Raises ApiError if it cannot be read or used."""
        with self.memory.share() as share:
            data = await read(request, self._limit, self._seconds, share)
            if len(data) <= MAX_IN_LOOP_BYTES:
                return decoder.decode(data)
            async with self._decoding:
                return await asyncio.to_thread(decoder.decode, data)
