"""What ranks that compute one model exchange, and ranks that are threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

WAIT_S: Final = 600.0
"""How long a rank waits for the others: a step is far shorter, even on a busy machine."""


class Collective(Protocol):
    """One rank's view of a group. All ranks make the same calls in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int:
        """Number of ranks."""
        ...

    def all_gather(self, columns: NDArray[Any]) -> Sequence[NDArray[Any]]:
        """The columns of each rank, in the order of ranks.

        ``[rows, c]`` of each, where c need not be the same; all have the same rows and type. Raises
        RuntimeError where another rank has failed.
        """
        ...

    def gather_to_first(self, columns: NDArray[Any]) -> Sequence[NDArray[Any]] | None:
        """What :meth:`all_gather` returns, for rank 0; None for others, which need not wait."""
        ...

    def when_given_up(self, call: Callable[[], None]) -> None:
        """Have ``call`` made, from any thread, when the group is given up; at once if it has
        been. It ends what waits for other ranks in a way that the group does not know of."""
        ...


@dataclass(frozen=True)
class RankSeat:
    """The place of an executor in a group of ranks, and both ways in which it may meet the others:
    a backend takes one of them, the same for all ranks."""

    collective: Collective
    segment: int
    """The file descriptor of memory that all ranks share (``interface/rank_segment.py``)."""
    slot_bytes: int
    """Most bytes of what a rank has to give in one gather."""
    threads: int
    """The compute threads of all ranks together, on this machine."""


class ThreadRank:
    """A Collective of ranks that are threads of this process."""

    def __init__(self, rank: int, shared: _Shared) -> None:
        self.rank = rank
        self.world = len(shared.columns)
        self._shared = shared

    def all_gather(self, columns: NDArray[Any]) -> Sequence[NDArray[Any]]:
        shared = self._shared
        shared.columns[self.rank] = columns
        try:
            shared.barrier.wait(WAIT_S)
            parts = tuple(part.copy() for part in shared.columns)
            shared.barrier.wait(WAIT_S)  # nobody writes the next before all have read this one
        except threading.BrokenBarrierError as e:
            raise RuntimeError(f"rank {self.rank} waits for ranks that have failed") from e
        return parts

    def gather_to_first(self, columns: NDArray[Any]) -> Sequence[NDArray[Any]] | None:
        parts = self.all_gather(columns)
        return None if self.rank else parts

    def when_given_up(self, call: Callable[[], None]) -> None:
        self._shared.given_up.append(call)
        if self._shared.barrier.broken:
            call()

    def fail(self) -> None:
        """Have the other ranks raise what they would wait for."""
        self._shared.barrier.abort()
        for call in self._shared.given_up:
            call()


class _Shared:
    def __init__(self, world: int) -> None:
        self.columns: list[NDArray[Any]] = [np.empty((0, 0))] * world
        self.barrier = threading.Barrier(world)
        self.given_up: list[Callable[[], None]] = []


def thread_ranks(world: int) -> tuple[ThreadRank, ...]:
    """The ranks of a new group, each for a thread of its own."""
    shared = _Shared(world)
    return tuple(ThreadRank(rank, shared) for rank in range(world))
