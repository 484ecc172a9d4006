"""Threads for the work that grammars make, which its owners take turns at."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, thread_time

SLOW_NICE = 10
"""Of threads that must not keep a step's own from a processor: a tenth of the weight of those."""


class Bell:
    """Rung when a job has ended. Waiting for it costs those who ring nothing while nobody waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waited_for = False

    def ring(self) -> None:
        if self._waited_for:
            with self._changed:
                self._changed.notify_all()

    def wait(self, until: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``until()``, which rings tell to look at anew; returns what it is at last.

        For one thread at a time.
        """
        if until():
            return True
        deadline = monotonic() + seconds
        with self._changed:
            self._waited_for = True
            try:
                while not (reached := until()):
                    left = deadline - monotonic()
                    if left <= 0:
                        break
                    self._changed.wait(left)
                return reached
            finally:
                self._waited_for = False


@dataclass
class _Line:
    """What waits of one owner, and what it has had."""

    jobs: deque[Callable[[], None]] = field(default_factory=deque)
    served_s: float = 0.0
    running: int = 0


class Workers:
    """A few threads, started when they are first needed, that take jobs of several owners in turn.

    The next job is that of the owner which has had the least processor time so far, and within an
    owner the oldest. An owner that had no job gets no credit for that: it begins where the one
    that was served least is. So nobody's jobs, many or slow, are done before another's but the one
    that is being worked on. (Start-time fair queueing; Goyal, Vin, Cheng 1996.)
    """

    def __init__(
        self,
        name: str,
        count: int,
        *,
        nice: int = 0,
        stack_bytes: int = 0,
        most_of_one: int | None = None,
        bell: Bell | None = None,
    ) -> None:
        """``stack_bytes``: of each thread; 0 for what is usual. ``most_of_one``: how many jobs of
        an owner may run at a time; None for any number. ``bell`` is rung after each job."""
        self._count = count
        self._most_of_one = count if most_of_one is None else most_of_one
        self._bell = bell
        self._threads = threads_for_grammars(name, count, nice)
        self._stack_bytes = stack_bytes
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}  # of owners with jobs
        self._working = 0  # threads that look for a job, or have one

    def submit(self, jobs: Iterable[tuple[str, Callable[[], None]]]) -> None:
        """Have these done, each for its owner. They must not raise."""
        with self._lock:
            added = 0
            for owner, job in jobs:
                self._line(owner).jobs.append(job)
                added += 1
            wanted = min(self._count - self._working, added)
            self._working += wanted
        with _stack_of_new_threads(self._stack_bytes):
            for _ in range(wanted):
                self._threads.submit(self._work)

    def close(self) -> None:
        """Forget what waits, and return once what runs is done."""
        with self._lock:
            for line in self._lines.values():
                line.jobs.clear()
        self._threads.shutdown(wait=True)

    def _line(self, owner: str) -> _Line:
        line = self._lines.get(owner)
        if line is None:
            least = min((each.served_s for each in self._lines.values()), default=0.0)
            line = self._lines[owner] = _Line(served_s=least)
        return line

    def _work(self) -> None:
        """Do jobs as long as there are any."""
        while True:
            with self._lock:
                owner = self._next_owner()
                if owner is None:
                    self._working -= 1
                    return
                line = self._lines[owner]
                line.running += 1
                job = line.jobs.popleft()
            began = thread_time()
            job()
            spent = thread_time() - began
            with self._lock:
                line.running -= 1
                line.served_s += spent
                if not line.jobs and not line.running:
                    del self._lines[owner]
            if self._bell is not None:
                self._bell.ring()

    def _next_owner(self) -> str | None:
        ready = [
            owner
            for owner, line in self._lines.items()
            if line.jobs and line.running < self._most_of_one
        ]
        return min(ready, key=lambda owner: self._lines[owner].served_s, default=None)


def threads_for_grammars(name: str, count: int, nice: int) -> ThreadPoolExecutor:
    """The one place that threads for grammars come from. ``nice`` adds to that of the process."""
    if not nice:
        return ThreadPoolExecutor(count, name)
    return ThreadPoolExecutor(count, name, _lower, (nice,))


@contextmanager
def _stack_of_new_threads(size: int) -> Iterator[None]:
    """Threads that start meanwhile get a stack of so many bytes; 0 changes nothing."""
    if not size:
        yield
        return
    usual = threading.stack_size(size)
    try:
        yield
    finally:
        threading.stack_size(usual)


def _lower(nice: int) -> None:
    # On Linux this is of the calling thread alone. Giving way takes no right.
    own = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), own + nice)
