"""One engine core for several threads of a process."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.engine.core import EngineCore
from penstock.errors import EngineDeadError, RequestError
from penstock.interface.messages import EngineRequest, EngineStats, SequenceUpdate
from penstock.resolved_config import ResolvedConfig


class Inbox(NamedTuple):
    """The updates of one call's requests that the caller has not received yet."""

    request_ids: tuple[str, ...]
    updates: deque[SequenceUpdate]


class SharedCore:
    """An EngineCore that threads step in turn, each for the requests of all.

    A call submits its requests with :meth:`submit` and receives their updates from :meth:`next`,
    which steps the core unless another thread has done so meanwhile. Requests of several threads,
    or of several iterators of one, are computed together. Turns last a step at most and are given
    in the order in which they were asked for, so nobody waits for a whole request of another.

    No turn is held while a caller's code runs. :meth:`leave` and :meth:`stop` never wait, so an
    iterator may be collected wherever that happens, within a turn too; what they ask for is done
    at the start of the next turn. After :meth:`close`, in a process that was forked, and within a
    turn of the same thread (a signal handler), every other method raises a PenstockError.
    """

    def __init__(self, core: EngineCore) -> None:
        self.config: ResolvedConfig = core.config
        self.labels = core.labels
        self.block_place = core.block_place
        self._core = core
        self._process = os.getpid()
        self._closed = False
        self._inboxes: dict[str, Inbox] = {}
        self._left: deque[tuple[Sequence[str], int | None]] = deque()
        self._turns = threading.Condition()
        self._waiting: deque[int] = deque()
        """The idents of the threads that wait for a turn; the first one has it."""

    @property
    def adapter_names(self) -> Mapping[str, str]:
        """The digests of the adapters that were loaded at the start, by their names."""
        return self._core.adapters.names

    def load_adapter(self, folder: Path) -> str:
        """Load an adapter; return its digest. Raises ConfigError or WeightError."""
        with self._turn():
            return self._core.load_adapter(str(folder))

    def drop_adapter(self, digest: str) -> None:
        with self._turn():
            self._core.drop_adapter(digest)

    def check(self, requests: Sequence[EngineRequest]) -> None:
        """Raise RequestError if one of the requests could not be served."""
        with self._turn():
            for request in requests:
                self._core.check(request)

    def submit(self, requests: Sequence[EngineRequest]) -> Inbox:
        """Submit all of the requests; raises RequestError and submits none if one cannot be served.

        Leave the inbox in the end, whatever happens.
        """
        inbox = Inbox(tuple(request.request_id for request in requests), deque())
        with self._turn():
            try:
                for request in requests:
                    self._core.add_request(request)
            except BaseException:
                self._core.abort(inbox.request_ids)
                raise
            self._inboxes.update(dict.fromkeys(inbox.request_ids, inbox))
        return inbox

    def next(self, inbox: Inbox) -> list[SequenceUpdate]:
        """The new updates of the inbox's requests, of which at least one must not have ended. The
        list may be empty."""
        with self._turn():
            if not inbox.updates:
                if not self._core.has_work:
                    raise EngineDeadError(
                        "the engine has nothing to do, and requests have not ended"
                    )
                for update in self._core.step():
                    owner = self._inboxes.get(update.request_id)
                    if owner is not None:
                        owner.updates.append(update)
            updates = list(inbox.updates)
            inbox.updates.clear()
            return updates

    def leave(self, inbox: Inbox) -> None:
        """Stop the requests of the inbox that still run, and forget all of them."""
        self._left.append((inbox.request_ids, None))

    def stop(self, request_ids: Sequence[str], index: int) -> None:
        """Stop one sequence of each request. It must have output."""
        self._left.append((request_ids, index))

    def stats(self) -> EngineStats:
        with self._turn():
            return self._core.stats()

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix."""
        with self._turn():
            self._core.reset_prefix_cache()

    def check_integrity(self) -> None:
        with self._turn():
            self._core.check_integrity()

    def close(self) -> None:
        """Release threads and memory. Calls that other threads still make raise a PenstockError."""
        if os.getpid() != self._process or self._closed:
            return
        with contextlib.suppress(EngineDeadError), self._turn():  # closed by another thread
            self._closed = True
            self._core.close()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Give the calling thread the core to itself."""
        if os.getpid() != self._process:
            raise EngineDeadError(
                "this LLM belongs to the process that this one was forked from; make another here"
            )
        me = threading.get_ident()
        with self._turns:
            if me in self._waiting:
                raise RequestError(
                    "this thread is within a step of the engine already; an LLM cannot be used "
                    "from a signal handler"
                )
            self._waiting.append(me)
            try:
                while self._waiting[0] != me:
                    self._turns.wait()
            except BaseException:  # KeyboardInterrupt
                self._done(me)
                raise
        try:
            if self._closed:
                raise EngineDeadError("this LLM is closed; make another")
            while self._left:
                request_ids, index = self._left.popleft()
                self._core.abort(request_ids, index)
                if index is None:
                    for request_id in request_ids:
                        self._inboxes.pop(request_id, None)
            yield
        finally:
            with self._turns:
                self._done(me)

    def _done(self, thread: int) -> None:
        self._waiting.remove(thread)
        if self._waiting:
            self._turns.notify_all()
