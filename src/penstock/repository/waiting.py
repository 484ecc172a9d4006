"""Requests that wait for models to be loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic

from penstock.repository.loaded import Lease, M


class Waiting(Generic[M]):
    """The requests that wait for each model, until all of them get it or none. Belongs to one event
    loop."""

    def __init__(self) -> None:
        self._of: dict[str, list[asyncio.Future[Lease[M]]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def count(self, name: str) -> int:
        return len(self._of.get(name, ()))

    def join(self, name: str) -> asyncio.Future[Lease[M]]:
        """What a request waits for from now on."""
        waiter: asyncio.Future[Lease[M]] = asyncio.get_running_loop().create_future()
        self._of.setdefault(name, []).append(waiter)
        return waiter

    def leave(self, name: str, waiter: asyncio.Future[Lease[M]]) -> bool:
        """A request waits no more; returns whether it still did. What it was given in this moment
        is given back."""
        if waiter in self._of.get(name, ()):
            self._of[name].remove(waiter)
            return True
        if not waiter.cancelled() and waiter.exception() is None:
            waiter.result().close()
        return False

    def admit(self, name: str, lease: Callable[[], Lease[M]]) -> None:
        """Give each of those that wait for the model a lease of it."""
        gone: list[Lease[M]] = []
        for waiter in self._of.pop(name, []):
            given = lease()
            if waiter.done():  # its client leaves in this moment
                gone.append(given)
            else:
                waiter.set_result(given)
        for given in gone:
            asyncio.get_running_loop().call_soon(given.close)

    def refuse(self, name: str, failure: Exception) -> None:
        """Have those fail that wait for the model."""
        for waiter in self._of.pop(name, []):
            if not waiter.done():
                waiter.set_exception(failure)

    def refuse_all(self, failure: Callable[[], Exception]) -> None:
        for name in tuple(self._of):
            self.refuse(name, failure())
