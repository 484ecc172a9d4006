"""What waits between the engine's updates and the consumer of one request."""

from __future__ import annotations

import asyncio

from penstock.engine.output import RequestOutput
from penstock.errors import PenstockError


class OutputStream:
    """The newest output of one request, for one consumer.

    Outputs are cumulative, so an unread one is replaced: the memory that a slow consumer costs
    is bounded by its request's own length.
    """

    def __init__(self, request_id: str, wire_id: str) -> None:
        self.request_id = request_id
        self.wire_id = wire_id
        self._output: RequestOutput | None = None
        self._error: PenstockError | None = None
        self._changed = asyncio.Event()

    def put(self, output: RequestOutput) -> None:
        self._output = output
        self._changed.set()

    def fail(self, error: PenstockError) -> None:
        self._error = error
        self._changed.set()

    async def next(self) -> RequestOutput:
        await self._changed.wait()
        self._changed.clear()
        output, self._output = self._output, None
        if output is not None:
            if self._error is not None:
                self._changed.set()
            return output
        assert self._error is not None
        raise self._error
