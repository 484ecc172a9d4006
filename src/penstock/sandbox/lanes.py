"""Places for jobs that run at once, and how many may wait for one."""

from __future__ import annotations

import asyncio
from types import TracebackType

from penstock.errors import OverloadedError


class Lane:
    """So many places; those who wait get them in order. Belongs to one event loop."""

    def __init__(self, places: int, most_waiting: int, what: str) -> None:
        self._semaphore = asyncio.Semaphore(places)
        self._most_waiting = most_waiting
        self._what = what
        self.num_waiting = 0

    @property
    def is_full(self) -> bool:
        """Whether somebody who came now would wait."""
        return self._semaphore.locked()

    async def enter(self) -> None:
        """Wait for a place. Raises OverloadedError if too many do."""
        if self.is_full and self.num_waiting >= self._most_waiting:
            raise OverloadedError(
                f"{self.num_waiting} {self._what} wait for a worker process, and no more may; "
                "send the request again later"
            )
        self.num_waiting += 1
        try:
            await self._semaphore.acquire()
        finally:
            self.num_waiting -= 1

    def leave(self) -> None:
        self._semaphore.release()


class Place:
    """A job's place in one lane or another, given back however the block ends."""

    def __init__(self) -> None:
        self._lane: Lane | None = None

    async def move(self, lane: Lane) -> None:
        """Leave the present lane and enter another. Raises OverloadedError."""
        self._leave()
        await lane.enter()
        self._lane = lane

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.leave()
