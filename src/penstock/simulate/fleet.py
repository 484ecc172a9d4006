"""Replicas, a router and a load, in the order of their times."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from penstock.bench.load.arrivals import Arrivals
from penstock.bench.load.turn import Conversation, Piece
from penstock.cache.changes import CacheChanges
from penstock.simulate.apart import ApartReplica
from penstock.simulate.asked import Asked, answer, prompt_of
from penstock.simulate.front_end import NEVER, Answer
from penstock.simulate.replica import Replica
from penstock.simulate.routing import make_router
from penstock.simulate.setup import Setup


@dataclass(frozen=True)
class Offered:
    """How conversations begin, as in a load test (``bench/load/run.py``)."""

    arrivals: Arrivals | None
    """None: at their own times (``Conversation.at_s``), or at once where they have none."""
    concurrency: int | None = None
    conversations: int | None = None
    duration_s: float | None = None
    seed: int = 0

    def is_over(self, now: float) -> bool:
        """Whether no conversation begins any more."""
        return self.duration_s is not None and now > self.duration_s

    def begin(self, conversations: Iterator[Conversation]) -> Iterator[tuple[float, Conversation]]:
        """Conversations and when they are due; with a bound on those that are open, the earliest
        time."""
        due = None
        if self.arrivals is not None:
            due = self.arrivals.times(np.random.default_rng([self.seed, 0xA221]))
        for conversation in itertools.islice(conversations, self.conversations):
            at = next(due) if due is not None else conversation.at_s or 0.0
            if self.is_over(at):
                return
            yield at, conversation


@dataclass
class _Talk:
    """A conversation that has begun."""

    number: int
    conversation: Conversation
    begun_s: float
    said: dict[int, tuple[Piece, ...]]
    """What was said up to each turn that was answered."""
    failed: set[int]
    waiting: set[int]
    open: int = 0


class Fleet:
    """Plays one load against ``setup.replicas`` equal replicas.

    Where conversations follow from answers (turns, a bound on open ones), replicas advance in small
    steps, the one that may end a request first before the others; otherwise each goes on alone up
    to the arrivals that it is given.
    """

    def __init__(self, setup: Setup, offered: Offered) -> None:
        self.setup = setup
        kind = Replica if setup.apart is None else ApartReplica
        self.replicas: list[Replica] = [
            kind(setup, number, offered.seed) for number in range(setup.replicas)
        ]
        self.answers: list[Answer] = []
        self.skipped = 0
        """Turns that were never sent: those they follow had failed."""
        self._offered = offered
        self._router = make_router(
            setup.routing, setup.replicas, offered.seed, setup.limits.block_size
        )
        self._now = 0.0
        self._due: list[tuple[float, int, _Talk, int]] = []
        self._ends: list[tuple[float, int, Answer]] = []
        """When clients learn of the ends that conversations or bounds wait for. They are found
        before their time: a step that began before an arrival may end after it."""
        self._talks: dict[int, _Talk] = {}
        self._count = 0
        self._events: list[tuple[float, int]] = []
        self._event_at = [NEVER] * setup.replicas
        """When each replica may next end a request; other entries of ``_events`` are outdated."""
        self._begun = 0

    def requests(self, replica: int) -> int:
        """Its open requests now."""
        return self._looked(replica).requests

    def tokens(self, replica: int) -> int:
        """The tokens of its open requests now."""
        return self._looked(replica).tokens

    def changes(self, replica: int, position: int | None) -> CacheChanges:
        """How its cache has changed by now since a position."""
        return self._looked(replica).changes(position)

    def run(
        self,
        conversations: Iterator[Conversation],
        watch: Callable[[int], None] = lambda done: None,
    ) -> None:
        """Play all of them to their ends; ``watch`` is told how many have begun."""
        begins = self._offered.begin(conversations)
        following = next(begins, None)
        bound = self._offered.concurrency or math.inf
        while True:
            if following is not None and self._offered.is_over(self._now):
                following = None
            end = self._ends[0][0] if self._ends else NEVER
            due = self._due[0][0] if self._due else NEVER
            at = min(end, due)
            if following is not None and len(self._talks) < bound:
                at = min(at, max(following[0], self._now))
            dependent = bool(self._talks) or (following is not None and bound < math.inf)
            if dependent and self._first_event() < at:
                self._advance_first(at)
                continue
            if at == NEVER:
                break
            self._now = at
            if end <= at:
                self._answered(heappop(self._ends)[2], at)
            elif due <= at:
                _, _, talk, turn = heappop(self._due)
                self._send(talk, turn, at)
            else:
                assert following is not None
                self._begin(following[1], at)
                watch(self._begun)
                following = next(begins, None)
        for replica in self.replicas:
            replica.advance(NEVER)
            replica.front.wake_until(NEVER)
            for _ in replica.settle(NEVER):
                pass

    def _begin(self, conversation: Conversation, at: float) -> None:
        number, self._begun = self._begun, self._begun + 1
        turns = conversation.turns
        talk = _Talk(number, conversation, at, {}, set(), set(range(len(turns))))
        followed = len(turns) > 1 or self._offered.concurrency is not None
        if followed:
            self._talks[number] = talk
        if len(turns) == 1:
            self._send(talk, 0, at)
        else:
            self._plan(talk, at)

    def _plan(self, talk: _Talk, now: float) -> None:
        """Let turns wait for their time whose earlier turns are answered, and end a conversation of
        which nothing is left."""
        for turn in sorted(talk.waiting):
            plan = talk.conversation.turns[turn]
            if any(each in talk.failed for each in plan.after):
                talk.waiting.discard(turn)
                talk.failed.add(turn)
                self.skipped += 1
            elif all(each in talk.said for each in plan.after):
                talk.waiting.discard(turn)
                talk.open += 1
                start = now if plan.after else talk.begun_s
                self._count += 1
                heappush(self._due, (start + plan.delay_s, self._count, talk, turn))
        if not talk.waiting and not talk.open:
            self._talks.pop(talk.number, None)

    def _send(self, talk: _Talk, turn: int, at: float) -> None:
        plan = talk.conversation.turns[turn]
        before = () if plan.continues is None else talk.said[plan.continues]
        pieces = prompt_of(talk.conversation, plan, before, self.setup.template)
        asked = Asked(
            name=f"{talk.number}.{turn}",
            conversation=talk.number,
            turn=turn,
            pieces=pieces,
            prompt=sum(piece.tokens for piece in pieces),
            output=plan.output_tokens or 1,
            scheduled_s=at,
            sent_s=at,
            pattern=plan.pattern,
        )
        chosen = self._router.choose(asked, self) if len(self.replicas) > 1 else 0
        replica = self.replicas[chosen]
        replica.advance(at)
        made = replica.offer(asked)
        if len(self.replicas) > 1:
            self._router.sent(made)
        self.answers.append(made)
        if self._talks:
            self._note(replica)
        if made.error is not None:
            self._await_end(made)

    def _await_end(self, made: Answer) -> None:
        """Let what follows from an answer, or from a refusal, wait until its client knows of it."""
        if made.asked.conversation in self._talks:
            self._count += 1
            heappush(self._ends, (made.end_s, self._count, made))

    def _answered(self, made: Answer, now: float) -> None:
        talk, turn = self._talks[made.asked.conversation], made.asked.turn
        if len(talk.conversation.turns) == 1:
            del self._talks[talk.number]
            return
        talk.open -= 1
        if made.error is None:
            said = answer(talk.number, turn, made.asked.output)
            talk.said[turn] = (*made.asked.pieces, said)
        else:
            talk.failed.add(turn)
        self._plan(talk, now)

    def _advance_first(self, until: float) -> None:
        """Advance the replica that may end a request before the others do, up to its first end."""
        at, number = self._events[0]
        replica = self.replicas[number]
        others = min((each[0] for each in self._events[1:3]), default=NEVER)
        stop = min(until, others)
        replica.advance(max(stop, math.nextafter(at, NEVER)), one_end=True)
        self._note(replica)
        for made in replica.settle(NEVER):
            self._await_end(made)

    def _note(self, replica: Replica) -> None:
        at, number = replica.next_at, replica.number
        if at != self._event_at[number]:
            self._event_at[number] = at
            if at < NEVER:
                heappush(self._events, (at, number))

    def _first_event(self) -> float:
        """When a replica may next end a request."""
        events = self._events
        while events and self._event_at[events[0][1]] != events[0][0]:
            heappop(events)
        return events[0][0] if events else NEVER

    def _looked(self, number: int) -> Replica:
        """A replica as it is now."""
        replica = self.replicas[number]
        if replica.next_at < self._now or replica.ended:
            replica.advance(self._now)
            for _ in replica.settle(self._now):
                pass
        return replica
