"""Reading bodies: long ones keep nobody waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.types import Message

from penstock.server.bodies import MAX_IN_LOOP_BYTES, Bodies
from penstock.server.openai.body import BodyDecoder, Decoded

PATIENCE_S = 60.0
MIB = 1 << 20


class Anything(msgspec.Struct):
    """A body that has no fields."""


class Held(BodyDecoder[Anything]):
    """Decodes while ``doing`` does something; knows how many it decodes at once."""

    def __init__(self, doing: Callable[[], object]) -> None:
        super().__init__(Anything)
        self._doing = doing
        self._now = 0
        self.most = 0

    def decode(self, body: bytes) -> Decoded[Anything]:
        self._now += 1
        self.most = max(self.most, self._now)
        self._doing()
        self._now -= 1
        return Decoded(Anything(), ())


def asked(*pieces: bytes, announced: int | None = None) -> Request:
    """A request whose body comes in ``pieces``."""
    length = sum(map(len, pieces)) if announced is None else announced
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % length)]
    left = list(pieces)

    async def receive() -> Message:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return Request({"type": "http", "headers": headers}, receive)


def test_the_loop_goes_on_while_a_long_body_is_decoded() -> None:
    went_on = threading.Event()

    async def main() -> None:
        decoder = Held(lambda: went_on.wait(PATIENCE_S) or 1 / 0)
        bodies = Bodies(MIB, PATIENCE_S)
        data = b" " * (MAX_IN_LOOP_BYTES + 1)
        long = [asyncio.create_task(bodies.decoded(asked(data), decoder)) for _ in range(3)]
        while not decoder.most:
            await asyncio.sleep(0.001)
        await bodies.decoded(asked(b"{}"), Held(lambda: None))
        went_on.set()
        await asyncio.gather(*long)
        assert decoder.most == 1

    asyncio.run(main())
