"""Threads for the work of grammars, in which the owners of jobs take turns."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, thread_time

from penstock.virtual_times import VirtualTimes

SLOW_NICE = 10
"""The nice value of threads that must not compete with a step's own for processors. It gives them
a tenth of the weight."""
Job = Callable[[], None]

_log = logging.getLogger(__name__)


class Bell:
    """Is rung when a job has ended. Ringing it is cheap while nobody waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waited_for = False

    def ring(self) -> None:
        if self._waited_for:
            with self._changed:
                self._changed.notify_all()

    def wait(self, until: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``until()`` is true, for so many seconds at most; returns whether it is.

        It is asked again after each ring. Only one thread may wait at a time.
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
    """The queued jobs of one owner, and how many of its jobs run."""

    jobs: deque[Job] = field(default_factory=deque)
    running: int = 0


class Workers:
    """A few threads that take jobs of several owners in turn. They start when first needed.

    The next job is that of the owner that was served the least processor time, by the rules of
    :class:`VirtualTimes`, and the oldest job of that owner. So nobody's jobs, many or slow, delay
    another owner's by more than the jobs that run already, and an owner that submits one job at a
    time gets no more than its share either.
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
        """``stack_bytes`` is the stack size of each thread; 0 for the default. ``most_of_one`` is
        the number of jobs of an owner that may run at a time; None for any number. ``bell`` is
        rung after each job."""
        self._count = count
        self._most_of_one = count if most_of_one is None else most_of_one
        self._bell = bell
        self._threads = threads_for_grammars(name, count, nice)
        self._stack_bytes = stack_bytes
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}  # of owners with jobs, queued or running
        self._served = VirtualTimes()  # in seconds of processor time
        self._working = 0  # threads that look for a job, or have one

    def submit(self, jobs: Iterable[tuple[str, Job]]) -> None:
        """Queue these jobs, each for its owner.

        A job should tell its own failure; what it raises is logged, and its thread goes on.
        """
        with self._lock:
            added = 0
            for owner, job in jobs:
                self._lines.setdefault(owner, _Line()).jobs.append(job)
                self._served.enter(owner, 1.0)
                self._served.wait(owner)
                added += 1
            wanted = min(self._count - self._working, added)
            self._working += wanted
        with _stack_of_new_threads(self._stack_bytes):
            for _ in range(wanted):
                self._threads.submit(self._work)

    def withdraw(self, owner: str, job: Job) -> bool:
        """Remove a queued job. Returns False if it runs already, or has run."""
        with self._lock:
            line = self._lines.get(owner)
            if line is None or job not in line.jobs:
                return False
            line.jobs.remove(job)
            self._withdrawn(owner, line)
            return True

    def close(self) -> None:
        """Withdraw all queued jobs, and return once those that run are done."""
        with self._lock:
            for owner, line in list(self._lines.items()):
                while line.jobs:
                    line.jobs.pop()
                    self._withdrawn(owner, line)
        self._threads.shutdown(wait=True)

    def _withdrawn(self, owner: str, line: _Line) -> None:
        self._served.wait_no_more(owner)
        self._leave(owner, line)

    def _leave(self, owner: str, line: _Line) -> None:
        self._served.leave(owner)
        if not line.jobs and not line.running:
            del self._lines[owner]

    def _work(self) -> None:
        """Do jobs as long as there are any."""
        while (taken := self._take()) is not None:
            owner, job = taken
            began = thread_time()
            try:
                job()
            except BaseException:  # there is nobody to raise it to, and others' jobs wait
                _log.exception("a job for grammars failed")
            finally:
                self._done(owner, thread_time() - began)

    def _take(self) -> tuple[str, Job] | None:
        """The next job, which counts as running from now on; None ends the thread's work."""
        with self._lock:
            owner = self._next_owner()
            if owner is None:
                self._working -= 1
                return None
            line = self._lines[owner]
            line.running += 1
            self._served.let_in(owner)
            self._served.wait_no_more(owner)
            return owner, line.jobs.popleft()

    def _done(self, owner: str, seconds: float) -> None:
        with self._lock:
            line = self._lines[owner]
            line.running -= 1
            self._served.serve(owner, seconds)
            self._leave(owner, line)
        if self._bell is not None:
            self._bell.ring()

    def _next_owner(self) -> str | None:
        ready = [
            owner
            for owner, line in self._lines.items()
            if line.jobs and line.running < self._most_of_one
        ]
        return min(ready, key=self._served.time, default=None)


def threads_for_grammars(name: str, count: int, nice: int) -> ThreadPoolExecutor:
    """Makes the threads for grammars; ``nice`` is added to the process's own nice value."""
    if not nice:
        return ThreadPoolExecutor(count, name)
    return ThreadPoolExecutor(count, name, _lower, (nice,))


@contextmanager
def _stack_of_new_threads(size: int) -> Iterator[None]:
    """Threads that start within get a stack of ``size`` bytes; 0 changes nothing."""
    if not size:
        yield
        return
    usual = threading.stack_size(size)
    try:
        yield
    finally:
        threading.stack_size(usual)


def _lower(nice: int) -> None:
    # On Linux this changes the calling thread only. Raising the nice value takes no privilege.
    own = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), own + nice)
