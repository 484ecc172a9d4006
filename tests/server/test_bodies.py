"""Reading bodies: long ones keep nobody waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import msgspec
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message
from support.waiting import PATIENCE_S

from penstock.server.bodies import MAX_IN_LOOP_BYTES, Bodies
from penstock.server.body_decoder import BodyDecoder, Decoded
from penstock.server.body_memory import ALWAYS_BYTES
from penstock.server.errors import ApiError

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
        return Decoded(Anything(), (), ())


def asked(*pieces: bytes, announced: int | None = None) -> Request:
    """A request whose body comes in ``pieces``."""
    length = sum(map(len, pieces)) if announced is None else announced
    how = (b"content-length", b"%d" % length) if length else (b"transfer-encoding", b"chunked")
    headers = [(b"content-type", b"application/json"), how]
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


def test_there_is_room_for_so_many_bytes_and_for_every_small_body() -> None:
    async def main() -> None:
        bodies = Bodies(MIB, PATIENCE_S, memory=2 * MIB)
        decoder = Held(lambda: None)
        half = b" " * (MIB // 2)
        going_on = asyncio.Event()

        async def receive() -> Message:
            await going_on.wait()
            return {"type": "http.request", "body": half, "more_body": False}

        slow = []
        for _ in range(4):
            request = asked(half, half, announced=0)  # comes in chunks
            first = request.receive
            messages = iter((first, receive))
            slow.append(
                asyncio.create_task(
                    bodies.decoded(Request(request.scope, lambda m=messages: next(m)()), decoder)
                )
            )
        async with asyncio.timeout(PATIENCE_S):
            while bodies.memory.left:
                await asyncio.sleep(0.001)
        for announced in (None, ALWAYS_BYTES):  # told at once, or found while it comes
            with pytest.raises(ApiError) as refused:
                await bodies.decoded(asked(half, announced=announced), decoder)
            assert refused.value.status == 503
            answer = refused.value.response()
            assert answer.headers["retry-after"]
            assert answer.headers["connection"] == "close"
        await bodies.decoded(asked(b" " * ALWAYS_BYTES), decoder)
        slow[0].cancel()
        await asyncio.gather(slow[0], return_exceptions=True)
        assert bodies.memory.left == MIB // 2
        going_on.set()
        answers = await asyncio.gather(*slow[1:], return_exceptions=True)
        assert bodies.memory.left == 2 * MIB
        assert any(isinstance(each, Decoded) for each in answers)
        await bodies.decoded(asked(half, half), decoder)

    asyncio.run(main())


@pytest.mark.parametrize("fault", ["left", "too long", "slow", "bad", "type"])
def test_room_is_given_back_on_every_path(fault: str) -> None:
    async def main() -> None:
        bodies = Bodies(MIB, 0.05 if fault == "slow" else PATIENCE_S, memory=MIB)
        request = asked(b"{" * MIB, announced=MIB)
        first = request.receive
        pieces = 0

        async def receive() -> Message:
            nonlocal pieces
            pieces += 1
            if pieces == 1 and fault != "bad":
                return {**(await first()), "more_body": True}
            if fault == "left":
                return {"type": "http.disconnect"}
            if fault == "slow":
                await asyncio.sleep(PATIENCE_S)
            return {"type": "http.request", "body": b"{", "more_body": False}

        if fault == "type":
            request.scope["headers"][0] = (b"content-type", b"text/plain")
        with pytest.raises((ApiError, ClientDisconnect)):
            await bodies.decoded(Request(request.scope, receive), BodyDecoder(Anything))
        assert bodies.memory.taken == 0

    asyncio.run(main())
