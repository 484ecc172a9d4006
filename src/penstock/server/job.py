"""The interface between handlers and a validated request of any dialect."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from penstock.server.errors import ApiError


class Job(Protocol):
    """One validated request, to be answered once."""

    async def answer(self) -> bytes:
        """The whole answer as JSON."""
        ...

    def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        ...

    def error(self, failure: ApiError) -> bytes:
        """The event that says why a stream ends early."""
        ...
