"""The interface between handlers and a validated request of any dialect."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, ParamSpec, Protocol

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


class WholeJob(Protocol):
    """One validated request whose answer is never streamed."""

    async def answer(self) -> bytes:
        """The whole answer as JSON."""
        ...


Taken = ParamSpec("Taken")


def whole(
    prepare: Callable[Taken, Coroutine[Any, Any, WholeJob]],
) -> Callable[Taken, Coroutine[Any, Any, bytes]]:
    """All the work for a request whose job ``prepare`` makes: the answer as JSON."""

    async def work(*args: Taken.args, **kwargs: Taken.kwargs) -> bytes:
        return await (await prepare(*args, **kwargs)).answer()

    return work
