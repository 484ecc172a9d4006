"""Works through batches, behind live requests, and goes on with them after a restart."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from penstock.server.openai.batches.asking import Answered
from penstock.server.openai.batches.input import Place, body_at, read_lines
from penstock.server.openai.batches.protocol import (
    ENDED,
    Batch,
    BatchFault,
    BatchFaults,
    BatchResult,
    Counts,
    FileObject,
    LineError,
    LineResponse,
    Status,
)
from penstock.server.openai.batches.store import BatchStore, LineFile, Owner

_TRIES: Final = 3
"""How often a request is made for which the server failed."""
_PAUSE_S: Final = 1.0
"""Seconds before a request is made again that the server had no room for."""
_DISK_PAUSE_S: Final = 30.0

_log = logging.getLogger("penstock.batches")


class Asker(Protocol):
    async def ask(self, owner: Owner, path: str, body: bytes) -> Answered: ...


class BatchRunner:
    """Runs all batches of a store at once, of whose requests ``at_once`` are open together.

    A request is answered by one line, of the output file where it was served and of the error file
    otherwise, and not made again once the line is there.
    """

    def __init__(
        self,
        store: BatchStore,
        asker: Asker,
        at_once: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._asker = asker
        self._at_once = at_once
        self._slots = asyncio.Semaphore(at_once)
        self._reading = asyncio.Lock()
        """One thread reads a file at a time: several would keep the interpreter from live
        requests."""
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled: dict[str, asyncio.Event] = {}

    def start(self) -> None:
        """Go on with the batches that have not ended."""
        for name, kept in self._store.batches.items():
            if kept.batch.status not in ENDED:
                self._begin(name)

    def add(self, batch: Batch, owner: Owner) -> None:
        """Take a new batch. Raises OSError."""
        self._store.keep_batch(batch, owner)
        self._begin(batch.id)

    def cancel(self, name: str) -> None:
        """Make no more requests of a batch that has not ended. Raises OSError."""
        if self._batch(name).status not in (*ENDED, "cancelling", "finalizing"):
            self._keep(name, status="cancelling", cancelling_at=self._now())
            self._cancelled[name].set()

    def uses(self, file_id: str) -> bool:
        """Whether a batch that has not ended has this input file."""
        return any(
            kept.batch.input_file_id == file_id and kept.batch.status not in ENDED
            for kept in self._store.batches.values()
        )

    async def aclose(self) -> None:
        """Stop where it is; the next server goes on from there."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, name: str) -> None:
        self._cancelled[name] = asyncio.Event()
        if self._batch(name).status == "cancelling":
            self._cancelled[name].set()
        task = asyncio.ensure_future(self._work(name))
        self._tasks[name] = task
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def _work(self, name: str) -> None:
        while True:
            try:
                await self._run(name)
                return
            except OSError as error:
                _log.error("batch %s waits: its files cannot be written: %s", name, error)
            except Exception:
                _log.exception("batch %s waits for an unexpected error", name)
            await asyncio.sleep(_DISK_PAUSE_S)

    async def _run(self, name: str) -> None:
        batch = self._batch(name)
        path = self._store.data(batch.input_file_id)
        try:
            async with self._reading:
                lines, faults = await asyncio.to_thread(read_lines, path, batch.endpoint)
        except OSError as error:
            why = f"the input file cannot be read: {error.strerror}"
            lines, faults = [], [BatchFault(code="invalid_input_file", message=why)]
        if faults:
            self._keep(
                name,
                status="failed",
                failed_at=self._now(),
                errors=BatchFaults(data=faults),
            )
            return
        if self._batch(name).status == "validating":
            self._keep(name, status="in_progress", in_progress_at=self._now())
        answers = _Answers(self._store, name, len(lines))
        try:
            async with self._reading:
                await asyncio.to_thread(answers.read)
            self._count(name, answers)
            left = [line for line in lines if line.custom_id not in answers.done]
            status = await self._asked(name, left, answers)
            if status == "expired":
                for line in left:
                    if line.custom_id not in answers.done:
                        answers.add(line.custom_id, _EXPIRED)
                self._count(name, answers)
            elif status == "completed":
                self._keep(name, status="finalizing", finalizing_at=self._now())
            await asyncio.to_thread(answers.sync)
        finally:
            answers.close()
        self._end(name, status)

    async def _asked(self, name: str, left: list[Place], answers: _Answers) -> Status:
        """Make the requests that are left, and return how that ended."""
        if self._cancelled[name].is_set():
            return "cancelled"
        if not left:
            return "completed"
        seconds = self._batch(name).expires_at - self._clock()
        if seconds <= 0:
            return "expired"
        working = asyncio.ensure_future(self._ask_all(name, left, answers))
        stopping = asyncio.ensure_future(self._cancelled[name].wait())
        try:
            both: set[asyncio.Future[Any]] = {working, stopping}
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return "completed"
            return "cancelled" if stopping.done() else "expired"
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    async def _ask_all(self, name: str, left: list[Place], answers: _Answers) -> None:
        kept = self._store.batches[name]
        path, endpoint = self._store.data(kept.batch.input_file_id), kept.batch.endpoint
        waiting = deque((place, 0) for place in left)

        async def work() -> None:
            while waiting:
                place, tries = waiting.popleft()
                async with self._slots:
                    body = body_at(path, place)
                    answered = await self._asker.ask(kept.owner, endpoint, body)
                status = answered.status
                tries += status not in (429, 503)
                if tries == _TRIES or (0 < status < 500 and status != 429):
                    answers.add(place.custom_id, answered)
                    self._count(name, answers)
                else:
                    # Meanwhile its slot is others', and others of this batch go first: what has no
                    # room, or whose model cannot be loaded, may be so for a day.
                    waiting.append((place, tries))
                    await asyncio.sleep(_PAUSE_S)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._at_once, len(left))):
                    group.create_task(work())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    def _end(self, name: str, status: Status) -> None:
        """Make files of the answers, and end the batch."""
        owner = self._store.batches[name].owner
        files: dict[str, str] = {}
        for kind in ("output", "error"):
            file_id = f"file-{name}-{kind}"
            path = self._store.data(file_id)
            size = path.stat().st_size if path.exists() else 0
            if not size:
                path.unlink(missing_ok=True)
                continue
            files[f"{kind}_file_id"] = file_id
            file = FileObject(
                id=file_id,
                bytes=size,
                created_at=self._now(),
                filename=f"{name}_{kind}.jsonl",
                purpose="batch_output",
            )
            self._store.announce(file, owner)
        self._keep(name, status=status, **{f"{status}_at": self._now()}, **files)

    def _batch(self, name: str) -> Batch:
        return self._store.batches[name].batch

    def _keep(self, name: str, **changes: Any) -> None:
        kept = self._store.batches[name]
        self._store.keep_batch(msgspec.structs.replace(kept.batch, **changes), kept.owner)

    def _count(self, name: str, answers: _Answers) -> None:
        """Tell how far a batch is; on disk, its answers tell it."""
        kept = self._store.batches[name]
        counted = msgspec.structs.replace(kept.batch, request_counts=answers.counts)
        self._store.batches[name] = msgspec.structs.replace(kept, batch=counted)

    def _now(self) -> int:
        return int(self._clock())


_EXPIRED: Final = LineError(
    code="batch_expired", message="the batch expired before this request was made"
)


class _Answers:
    """The answers to the requests of a batch, in its two files; those of servers before are
    there."""

    def __init__(self, store: BatchStore, name: str, total: int) -> None:
        """Raises OSError."""
        self._total = total
        self._output = LineFile(store.data(f"file-{name}-output"))
        self._errors = LineFile(store.data(f"file-{name}-error"))
        self.done: set[str] = set()
        """The requests that are answered."""
        self._failed = self._completed = 0

    def read(self) -> None:
        """Take in the answers that are there, which takes time where they are many. Raises
        OSError."""
        decoder = msgspec.json.Decoder(BatchResult)
        for line in self._output.lines():
            self.done.add(decoder.decode(line).custom_id)
            self._completed += 1
        for line in self._errors.lines():
            self.done.add(decoder.decode(line).custom_id)
            self._failed += 1

    @property
    def counts(self) -> Counts:
        return Counts(total=self._total, completed=self._completed, failed=self._failed)

    def add(self, custom_id: str, answer: Answered | LineError) -> None:
        """Raises OSError."""
        response, error = None, None
        if isinstance(answer, LineError):
            error = answer
        else:
            body = msgspec.Raw(answer.body)
            response = LineResponse(
                status_code=answer.status, request_id=answer.request_id, body=body
            )
        served = response is not None and response.status_code == 200
        result = BatchResult(
            id=f"batch_req_{uuid.uuid4().hex}",
            custom_id=custom_id,
            response=response,
            error=error,
        )
        (self._output if served else self._errors).add(msgspec.json.encode(result))
        self.done.add(custom_id)
        self._completed += served
        self._failed += not served

    def sync(self) -> None:
        """Have all on disk, which takes time. Raises OSError."""
        self._output.sync()
        self._errors.sync()

    def close(self) -> None:
        """Raises OSError."""
        try:
            self._output.close()
        finally:
            self._errors.close()
