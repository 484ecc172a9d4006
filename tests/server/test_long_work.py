"""Work that takes long, of a server of several models."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.errors import ModelError
from penstock.server.models.long_work import in_own_thread


def test_what_it_returns_and_raises() -> None:
    def fail() -> int:
        raise ModelError("it broke off")

    assert asyncio.run(in_own_thread(lambda: 7)) == 7
    with pytest.raises(ModelError, match="it broke off"):
        asyncio.run(in_own_thread(fail))


def test_the_end_of_the_loop_does_not_wait_for_it() -> None:
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        over.wait()

    async def main() -> None:
        waiting = asyncio.ensure_future(in_own_thread(work))
        while not begun.is_set():
            await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(main())
    over.set()
