"""Lanes: limits on the jobs that run at once, with bounded queues."""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from penstock.errors import OverloadedError, PenstockError


class Lane:
    """A semaphore with a bounded queue, shared fairly by tenants. Belongs to one event loop.

    The next seat goes to the tenant that holds the fewest, and among equals to the one that has
    waited longest for its turn. One tenant may fill half of the queue while others wait, and three
    quarters of it when alone, so that newcomers always find a place.
    """

    def __init__(self, seats: int, most_waiting: int, what: str) -> None:
        self._free = seats
        self._most_waiting = most_waiting
        self._what = what
        self._seated: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # in the order of their turns
        self._closed: PenstockError | None = None

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def is_full(self) -> bool:
        """Whether a newcomer would have to wait."""
        return self._free == 0

    async def enter(self, tenant: str) -> None:
        """Wait for a seat. Raises OverloadedError if too many wait, and the error given to
        :meth:`close`."""
        if self._closed is not None:
            raise self._closed
        if self._free:
            self._seat(tenant)
            return
        self._check_queue(tenant)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(tenant, turn)
            elif turn.exception() is None:
                self.leave(tenant)
            raise

    def leave(self, tenant: str) -> None:
        self._free += 1
        self._seated[tenant] -= 1
        if not self._seated[tenant]:
            del self._seated[tenant]
        while self._free and self._waiting:
            first = min(self._waiting, key=lambda name: self._seated[name])
            turns = self._waiting.pop(first)
            turn = turns.popleft()
            if turns:
                self._waiting[first] = turns
            if not turn.done():  # its task was cancelled just now
                self._seat(first)
                turn.set_result(None)

    def close(self, error: PenstockError) -> None:
        """Raise ``error`` in all waiting and future calls of :meth:`enter`."""
        self._closed = error
        for turns in self._waiting.values():
            for turn in turns:
                if not turn.done():
                    turn.set_exception(error)
                    turn.exception()  # nobody may be left to look at it
        self._waiting.clear()

    def _seat(self, tenant: str) -> None:
        self._free -= 1
        self._seated[tenant] += 1

    def _check_queue(self, tenant: str) -> None:
        most, waiting = self._most_waiting, self.num_waiting
        own = len(self._waiting.get(tenant, ()))
        if waiting >= most:
            raise OverloadedError(
                f"{waiting} {self._what} wait for a worker process, and no more may; "
                "send the request again later"
            )
        if own >= (most + 1) // 2 and (own < waiting or waiting >= most - most // 4):
            raise OverloadedError(
                f"{own} of your {self._what} wait for a worker process, and others need room too; "
                "send fewer at once, or the request again later"
            )

    def _forget(self, tenant: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(tenant)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[tenant]


class Seat:
    """A tenant's seat in a lane, as a context manager that always gives it back."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self.lane: Lane | None = None

    async def move(self, lane: Lane) -> None:
        """Leave the current lane and enter another. Raises the errors of :meth:`Lane.enter`."""
        self._leave()
        await lane.enter(self._tenant)
        self.lane = lane

    def __enter__(self) -> Seat:
        return self

    def __exit__(self, *error: object) -> None:
        self._leave()

    def _leave(self) -> None:
        lane, self.lane = self.lane, None
        if lane is not None:
            lane.leave(self._tenant)
