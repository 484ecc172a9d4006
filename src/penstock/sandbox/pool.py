"""A pool of workers for one event loop, in which no caller waits for another's expensive job."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter

from penstock.errors import OverloadedError, UnavailableError
from penstock.sandbox.connection import Connection
from penstock.sandbox.jobs import Answer, CheckGrammar, Exhausted, Job, encode_job
from penstock.sandbox.lanes import Lane, Seat
from penstock.sandbox.process import ForkServer, WorkerDied
from penstock.sandbox.results import failure, result

_log = logging.getLogger(__name__)

SLOW_S = 0.1
"""Seconds of processor time after which a job is slow."""
_SLOW_SEATS = 3
_MOST_WAITING = 1024
_MOST_SLOW_WAITING = 64
_MOST_GROWTH_BYTES = 128 << 20
"""Memory growth, in bytes, after which a worker is replaced."""


class WorkerPool:
    """Does jobs in worker processes. Belongs to one event loop; starts nothing before it is asked.

    Jobs have seats in lanes: one for grammars, one for texts, and one for what is slow. A job that
    is long, which is known beforehand, begins in the slow lane. Any other begins in its own; after
    ``SLOW_S`` of processor time it moves to the slow lane. Where that is full it is ended and begun
    again there later, or refused if too many wait. A slow worker gives way to all other processes
    and is not used again. So there are always seats for jobs that are quick, and what bombs can
    take of the machine is bounded. Tenants share each lane (``lanes``).

    A job whose worker dies, by a limit or a crash, fails alone; one whose worker is lost is done
    again, once. When the caller is cancelled, a waiting job is dropped and a running one's worker
    is killed.
    """

    def __init__(self) -> None:
        seats = min(max((os.cpu_count() or 1) // 4, 2), 4)
        self._most_idle = 2 * seats
        self._server = ForkServer()
        self._grammars = Lane(seats, _MOST_WAITING, "grammars")
        self._texts = Lane(seats, _MOST_WAITING, "texts")
        self._slow = Lane(_SLOW_SEATS, _MOST_SLOW_WAITING, "long texts and slow jobs")
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._spare: asyncio.Task[None] | None = None
        self._tokenizer = ""
        self._closed = False
        self.ended: Counter[str] = Counter()
        """Number of jobs without a result, by reason: an End, ``left`` (by their caller) or
        ``overload``."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the live workers."""
        return [each.process.pid for each in self._all if each.alive and each.has_started]

    async def run(self, job: Job, tenant: str = "") -> Answer:
        """Run a job and return its answer.

        Raises RequestError if the job refuses or exceeds a limit of workers, OverloadedError if too
        many jobs wait, of this tenant or in all, and UnavailableError if two workers in turn are
        lost or the pool is closed.
        """
        try:
            return await self._run(job, tenant)
        except asyncio.CancelledError:
            self.ended["left"] += 1
            raise
        except OverloadedError:
            self.ended["overload"] += 1
            raise

    def warm(self, tokenizer: str) -> None:
        """Start a worker that has loaded this tokenizer, ready for the first job."""
        self._tokenizer = tokenizer
        self._start_spare()

    async def aclose(self) -> None:
        """End all processes; jobs that run or wait fail with UnavailableError. Safe to repeat."""
        self._closed = True
        for lane in (self._grammars, self._texts, self._slow):
            lane.close(_closed())
        if self._spare is not None:
            self._spare.cancel()
            await asyncio.gather(self._spare, return_exceptions=True)
        self._idle.clear()
        for worker in list(self._all):
            self._end(worker)
        while self._endings:
            await asyncio.gather(*self._endings)
        self._server.close()

    async def _run(self, job: Job, tenant: str) -> Answer:
        frame = encode_job(job)
        with Seat(tenant) as seat:
            quick = self._grammars if isinstance(job, CheckGrammar) else self._texts
            await seat.move(self._slow if job.is_long else quick)
            try:
                try:
                    answer = await self._do(job, frame, seat)
                except WorkerDied as death:
                    if death.end != "lost" or self._closed:
                        raise
                    # What ended it, such as the end of the fork server, may be about to end those.
                    self._end_idle()
                    answer = await self._do(job, frame, seat)
            except WorkerDied as death:
                if self._closed:
                    raise _closed() from None
                self.ended[death.end] += 1
                raise failure(job, death.end) from None
        if isinstance(answer, Exhausted):
            self.ended["memory"] += 1
        return result(job, answer)

    async def _do(self, job: Job, frame: bytes, seat: Seat) -> Answer:
        """Run a job in its lane, or in the slow lane if it turns out to be slow. Raises WorkerDied
        and OverloadedError."""
        worker = await self._take(job)
        try:
            worker.ask(frame)
            slow = seat.lane is self._slow or not await worker.within(SLOW_S)
            if slow and seat.lane is not self._slow and self._slow.is_full:
                self._end(worker)
                await seat.move(self._slow)
                return await self._do(job, frame, seat)
            if slow:
                worker.process.lower()
                self._start_spare()
                if seat.lane is not self._slow:
                    await seat.move(self._slow)
            answer = await worker.answer()
        except BaseException:
            self._end(worker)
            raise
        self._put_back(worker)
        return answer

    async def _take(self, job: Job) -> Connection:
        """Return a worker that can start this job now."""
        if not isinstance(job, CheckGrammar):
            self._tokenizer = job.tokenizer
        self._idle[:] = [worker for worker in self._idle if worker.alive]
        self._all = {worker for worker in self._all if worker.alive}
        return self._idle.pop() if self._idle else await self._start()

    async def _start(self) -> Connection:
        try:
            return await self._start_once()
        except UnavailableError:  # its fork server was killed: the next has another
            return await self._start_once()

    async def _start_once(self) -> Connection:
        if self._closed:
            raise _closed()
        worker = Connection()
        self._all.add(worker)
        try:
            await worker.start(self._server, self._tokenizer)
        except BaseException:
            self._end(worker)
            raise
        return worker

    def _put_back(self, worker: Connection) -> None:
        """Keep a worker whose job is done, if it can be reused."""
        grown = worker.process.resident_bytes - worker.process.first_bytes
        done = worker.process.lowered or grown > _MOST_GROWTH_BYTES
        if done or self._closed or len(self._idle) >= self._most_idle:
            self._end(worker)
        else:
            self._idle.append(worker)

    def _end_idle(self) -> None:
        for worker in self._idle:
            self._end(worker)
        self._idle.clear()

    def _end(self, worker: Connection) -> None:
        """End a worker in the background; safe to repeat."""
        self._all.discard(worker)
        ending = asyncio.get_running_loop().create_task(worker.aclose())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    def _start_spare(self) -> None:
        """Start a spare worker for the next job."""
        if self._idle or self._closed or (self._spare is not None and not self._spare.done()):
            return
        self._spare = asyncio.get_running_loop().create_task(self._add_spare())

    async def _add_spare(self) -> None:
        try:
            worker = await self._start()
        except UnavailableError as error:
            _log.warning("%s", error)
        else:
            self._idle.append(worker)


def _closed() -> UnavailableError:
    return UnavailableError("the worker processes are closed; start the server again")
