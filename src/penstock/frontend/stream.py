"""The stream of one request's outputs, between the engine's updates and their consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.frontend.outputs import RequestOutput
from penstock.interface.messages import Tenant

NOBODY = Tenant()


class OutputStream:
    """The newest output of one request, for one consumer.

    Outputs are cumulative, so an unread one is replaced: the memory that a slow consumer costs
    is bounded by its request's own length. What was put is not seen before ``wake``.
    """

    def __init__(
        self, request_id: str, wire_id: str, num_sequences: int, tenant: Tenant = NOBODY
    ) -> None:
        self.request_id = request_id
        self.tenant = tenant
        self.num_sequences = num_sequences
        self.wire_id = wire_id
        self._output: Callable[[], RequestOutput] | None = None
        self._error: PenstockError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._due = False
        self.begun = False
        """Whether there has been an output."""

    def put(self, output: Callable[[], RequestOutput]) -> None:
        """Replace the newest output. ``output`` is called to make it when the consumer asks for
        it."""
        self._output = output
        self.begun = True

    def freeze(self) -> None:
        """Keep the newest output as it is now, whatever becomes of its request."""
        if self._output is not None:
            output = self._output()
            self._output = lambda: output

    def fail(self, error: PenstockError) -> None:
        """Make ``next`` raise ``error`` once the last output has been read."""
        self._error = error
        self.wake()

    def wake(self) -> None:
        """Let the consumer have what was put, if it has not had it."""
        self._due = self._output is not None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> RequestOutput:
        while not self._due and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._due = False
        output, self._output = self._output, None
        if output is not None:
            return output()
        assert self._error is not None
        raise self._error
