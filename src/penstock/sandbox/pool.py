"""Workers for many callers of one event loop, none of whom waits for another's bomb."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter

from penstock.errors import OverloadedError, PenstockError
from penstock.sandbox import wire
from penstock.sandbox.connection import Connection
from penstock.sandbox.jobs import Answer, CheckGrammar, Exhausted, Job
from penstock.sandbox.lanes import Lane, Place
from penstock.sandbox.process import ForkServer, WorkerDied
from penstock.sandbox.results import result

_log = logging.getLogger(__name__)

SLOW_S = 0.1
"""Of processor time, after which a job is slow."""
_SLOW_PLACES = 3
_MOST_PAUSED = 3
"""Jobs that were found to be slow when there was no place for them, and hold their memory."""
_MOST_WAITING = 1024
_MOST_SLOW_WAITING = 64
_MOST_GROWTH_BYTES = 128 << 20
"""What a worker that goes on may have kept of memory."""


class WorkerPool:
    """Does jobs in worker processes. Belongs to one event loop; starts nothing before it is asked.

    Jobs have places in lanes: one for grammars, one for texts, and one for what is slow. A job
    that is long, which is known beforehand, begins in the slow lane. Any other begins in its own;
    after ``SLOW_S`` of processor time it moves to the slow lane, or waits for that without taking
    time, or is refused where too many wait. A slow worker gives way to all other processes and is
    not used again. So there are always places for jobs that are quick, and what bombs can take of
    the machine is bounded.

    A job whose worker dies, by a limit or a crash, fails alone. When the caller is cancelled, a
    waiting job is dropped and a running one's worker is killed.
    """

    def __init__(self) -> None:
        places = min(max((os.cpu_count() or 1) // 4, 2), 4)
        self._places = 2 * places
        self._server = ForkServer()
        self._grammars = Lane(places, _MOST_WAITING, "grammars")
        self._texts = Lane(places, _MOST_WAITING, "texts")
        self._slow = Lane(_SLOW_PLACES, _MOST_SLOW_WAITING, "long texts and slow jobs")
        self._num_paused = 0
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._spare: asyncio.Task[None] | None = None
        self._tokenizer = ""
        self._closed = False
        self.ended: Counter[str] = Counter()
        """Jobs that did not come to their end, by why: ``time``, ``memory``, ``crash``, ``left``
        (by their caller), ``overload``."""

    @property
    def pids(self) -> list[int]:
        """Of the workers that live."""
        return [each.process.pid for each in self._all if each.alive]

    async def run(self, job: Job) -> Answer:
        """The job's answer.

        Raises RequestError if the job refuses or exceeds a limit of workers, and OverloadedError
        if too many jobs wait.
        """
        try:
            return await self._run(job)
        except asyncio.CancelledError:
            self.ended["left"] += 1
            raise
        except OverloadedError:
            self.ended["overload"] += 1
            raise

    def warm(self, tokenizer: str) -> None:
        """Start a worker that has loaded this tokenizer, for the first who needs one."""
        self._tokenizer = tokenizer
        self._start_spare()

    async def aclose(self) -> None:
        """End all workers; jobs that run fail. Safe to repeat."""
        self._closed = True
        if self._spare is not None:
            self._spare.cancel()
            await asyncio.gather(self._spare, return_exceptions=True)
        for worker in list(self._all):
            self._end(worker)
        await asyncio.gather(*self._endings)
        self._server.close()

    async def _run(self, job: Job) -> Answer:
        frame = wire.encode_job(job)
        with Place() as place:
            long = job.is_long
            quick = self._grammars if isinstance(job, CheckGrammar) else self._texts
            await place.move(self._slow if long else quick)
            worker = await self._take(job)
            try:
                worker.ask(frame)
                if long:
                    worker.process.lower()
                    self._start_spare()
                elif not await worker.within(SLOW_S):
                    worker = await self._slow_down(worker, place, job, frame)
                answer = await worker.answer()
            except WorkerDied as death:
                self.ended[death.cause] += 1
                self._end(worker)
                raise job.died(death.cause) from None
            except BaseException:
                self._end(worker)
                raise
            self._put_back(worker)
        if isinstance(answer, Exhausted):
            self.ended["memory"] += 1
        return result(job, answer)

    async def _take(self, job: Job) -> Connection:
        """A worker that can begin this job now."""
        if not isinstance(job, CheckGrammar):
            self._tokenizer = job.tokenizer
        self._idle[:] = [worker for worker in self._idle if worker.alive]
        self._all = {worker for worker in self._all if worker.alive}
        return self._idle.pop() if self._idle else await self._start()

    async def _start(self) -> Connection:
        try:
            worker = await Connection.start(self._server, self._tokenizer)
        except PenstockError:  # the fork server was killed: the next is another
            worker = await Connection.start(self._server, self._tokenizer)
        self._all.add(worker)
        return worker

    async def _slow_down(
        self, worker: Connection, place: Place, job: Job, frame: bytes
    ) -> Connection:
        """Move a running job to the slow lane; returns the worker that does it from then on.

        While it waits for a place there it is paused, or, where too many are, its worker is ended
        and it is begun again later. Raises OverloadedError.
        """
        worker.process.lower()
        self._start_spare()
        if not self._slow.is_full:
            await place.move(self._slow)
        elif self._num_paused < _MOST_PAUSED:
            worker.process.pause()
            self._num_paused += 1
            try:
                await place.move(self._slow)
            finally:
                self._num_paused -= 1
            worker.process.resume()
        else:
            self._end(worker)
            await place.move(self._slow)
            worker = await self._take(job)
            worker.process.lower()
            worker.ask(frame)
        return worker

    def _put_back(self, worker: Connection) -> None:
        """Let a worker whose job is done go on, if it may."""
        grown = worker.process.resident_bytes - worker.process.first_bytes
        done = worker.process.lowered or grown > _MOST_GROWTH_BYTES
        if done or self._closed or len(self._idle) >= self._places:
            self._end(worker)
        else:
            self._idle.append(worker)

    def _end(self, worker: Connection) -> None:
        self._all.discard(worker)
        ending = asyncio.get_running_loop().create_task(worker.aclose())
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    def _start_spare(self) -> None:
        """Have a worker ready for the next job, beside those that are slow."""
        if self._idle or self._closed or (self._spare is not None and not self._spare.done()):
            return
        self._spare = asyncio.get_running_loop().create_task(self._add_spare())

    async def _add_spare(self) -> None:
        try:
            worker = await self._start()
        except PenstockError as error:
            _log.warning("%s", error)
        else:
            self._idle.append(worker)
