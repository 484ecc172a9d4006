"""One run: conversations begin when they are due, and every request leaves a record."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from penstock.bench.load.arrivals import Arrivals
from penstock.bench.load.connection import Exchange, Failure, Pool
from penstock.bench.load.events import EventReader
from penstock.bench.load.outcome import STOPPED, Asked, recorded, refusal
from penstock.bench.load.record import RequestRecord
from penstock.bench.load.target import Target
from penstock.bench.load.turn import Conversation
from penstock.bench.load.wordbook import Wordbook

_LOOK_S: Final = 0.1
_SPIN_S: Final = 0.0015
"""A timer of the loop may be a millisecond late; before an arrival it looks without waiting."""


@dataclass(frozen=True)
class Timeouts:
    """Seconds after which a request is given up."""

    total_s: float = 3600.0
    stall_s: float = 600.0
    """Seconds without a byte, before the first one and between two."""


@dataclass(frozen=True)
class Offer:
    """How much is offered in one run.

    ``arrivals`` say when conversations begin (None: at the times of their own, and without such at
    once); at most ``concurrency`` of them are open at any time, and others wait. A run ends behind
    ``conversations``, or begins none after ``duration_s``.
    """

    arrivals: Arrivals | None
    concurrency: int | None
    conversations: int | None
    duration_s: float | None
    seed: int


@dataclass(frozen=True)
class Ran:
    """What a run left."""

    records: tuple[RequestRecord, ...]
    started: float
    """Seconds since the epoch."""
    seconds: float
    """Until the last answer was complete."""
    skipped_turns: int
    """Turns that were never sent, since one that they follow had failed."""
    partial: bool


class Watcher(Protocol):
    """Is told of a run while it goes on."""

    def look(self, run: LoadRun) -> bool:
        """Called ten times a second; whether the run is to stop now."""


class LoadRun:
    """Offers conversations to a server, and keeps what came of each request."""

    def __init__(
        self,
        target: Target,
        pool: Pool,
        wordbook: Wordbook,
        offer: Offer,
        timeouts: Timeouts,
        watcher: Watcher | None = None,
    ) -> None:
        self.offer = offer
        self.records: list[RequestRecord] = []
        """Finished requests, in the order of their ends."""
        self.open: set[Exchange] = set()
        self.start = 0.0
        """Time of ``time.perf_counter`` when the run began."""
        self.sent = 0
        self._target = target
        self._pool = pool
        self._wordbook = wordbook
        self._timeouts = timeouts
        self._watcher = watcher
        self._skipped = 0
        self._stopping = False

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self.start

    async def run(self, conversations: Iterator[Conversation]) -> Ran:
        """Offer the conversations and wait for all answers."""
        started = time.time()
        self.start = time.perf_counter()
        offering = asyncio.create_task(self._offer(conversations))
        looking = asyncio.create_task(self._look(offering))
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await offering
        finally:
            looking.cancel()
        ends = [record.end_s for record in self.records if record.error != STOPPED]
        return Ran(
            records=tuple(sorted(self.records, key=lambda record: record.index)),
            started=started,
            seconds=self.seconds if self._stopping else max(ends, default=0.0),
            skipped_turns=self._skipped,
            partial=self._stopping,
        )

    async def _offer(self, conversations: Iterator[Conversation]) -> None:
        offer = self.offer
        due = None
        if offer.arrivals is not None:
            due = offer.arrivals.times(np.random.default_rng([offer.seed, 0xA221]))
        slots = asyncio.Semaphore(offer.concurrency) if offer.concurrency else None
        async with asyncio.TaskGroup() as group:
            for conversation in itertools.islice(conversations, offer.conversations):
                first = self._first_message(conversation)
                at = next(due) if due is not None else conversation.at_s
                if offer.duration_s is not None and max(at or 0, self.seconds) > offer.duration_s:
                    break
                if at is not None:
                    await self._until(at)
                if slots is not None:
                    await slots.acquire()
                if offer.duration_s is not None and self.seconds > offer.duration_s:
                    break
                scheduled = self.seconds if at is None else at
                group.create_task(self._converse(conversation, scheduled, first, slots))
                await asyncio.sleep(0)  # it is sent before the next one is made

    async def _until(self, at: float) -> None:
        while (left := at - self.seconds) > 0:
            await asyncio.sleep(left - _SPIN_S if left > _SPIN_S else 0)

    async def _look(self, offering: asyncio.Task[None]) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self._give_up_late()
            if self._watcher is not None and self._watcher.look(self):
                self._stopping = True
                offering.cancel()
                return

    def _give_up_late(self) -> None:
        now, limits = time.perf_counter(), self._timeouts
        for exchange in self.open:
            if now - exchange.last_at > limits.stall_s:
                where = "between tokens" if exchange.received else "before the first byte"
                exchange.fail("stall", f"nothing came for {limits.stall_s:g} s {where}")
            elif now - exchange.sent_at > limits.total_s:
                exchange.fail("timeout", f"not complete after {limits.total_s:g} s")

    def _first_message(self, conversation: Conversation) -> bytes:
        """The bytes of the first turn, made before it is due."""
        turn = conversation.turns[0]
        return self._target.ask([("user", self._wordbook.prompt(turn))], turn.output_tokens)

    async def _converse(
        self,
        conversation: Conversation,
        scheduled: float,
        first: bytes,
        slots: asyncio.Semaphore | None,
    ) -> None:
        try:
            turns = conversation.turns
            if len(turns) == 1:
                await self._ask(conversation, 0, scheduled, first, EventReader())
                return
            said: list[asyncio.Future[list[tuple[str, str]] | None]] = [
                asyncio.get_running_loop().create_future() for _ in turns
            ]
            async with asyncio.TaskGroup() as group:
                for index in range(len(turns)):
                    group.create_task(self._turn(conversation, index, scheduled, said))
        finally:
            if slots is not None:
                slots.release()

    async def _turn(
        self,
        conversation: Conversation,
        index: int,
        start: float,
        said: Sequence[asyncio.Future[list[tuple[str, str]] | None]],
    ) -> None:
        """Wait for what the turn follows, ask it, and tell those that follow what was said, or
        None if it failed."""
        turn = conversation.turns[index]
        for earlier in turn.after:
            if await asyncio.shield(said[earlier]) is None:
                self._skipped += 1
                said[index].set_result(None)
                return
        due = (start if not turn.after else self.seconds) + turn.delay_s
        before = [] if turn.continues is None else said[turn.continues].result() or []
        history = [*before, ("user", self._wordbook.prompt(turn))]
        message = self._target.ask(history, turn.output_tokens)
        await self._until(due)
        followed = any(index == later.continues for later in conversation.turns)
        reader = EventReader(keep_text=followed)
        record = await self._ask(conversation, index, due, message, reader)
        said[index].set_result([*history, ("assistant", reader.text)] if record.ok else None)

    async def _ask(
        self,
        conversation: Conversation,
        index: int,
        scheduled: float,
        message: bytes,
        reader: EventReader,
    ) -> RequestRecord:
        """Send one request and keep its record."""
        exchange = Exchange(reader)
        number, self.sent = self.sent, self.sent + 1
        self.open.add(exchange)
        failure: Failure | None = None
        try:
            failure = await self._pool.exchange(message, exchange) or refusal(exchange)
        except asyncio.CancelledError:
            failure = Failure(STOPPED, "the run was stopped before the answer was complete")
            raise
        finally:
            self.open.discard(exchange)
            asked = Asked(number, conversation, index, scheduled)
            record = recorded(asked, exchange, reader, self.start, failure)
            self.records.append(record)
        return record
