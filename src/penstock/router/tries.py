"""Which replicas one request was sent to, and which it may go on to."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.errors import PenstockError
from penstock.router.delivery import RefusedError
from penstock.router.exchange import UpstreamError
from penstock.router.fleet import Fleet
from penstock.router.replica import Replica
from penstock.routing.query import bits

MOST: Final = 8
"""Replicas that a request is sent to, one after the other; those that refused it and are asked
again later do not count again."""
MOST_BROKEN: Final = 3
"""Replicas that may break off one request in a row before it is taken for the cause. A request that
ends each server it is sent to would otherwise end all of them, and those that take their places."""
_AGAIN_S: Final = 1.0
"""Seconds after which a request that waits for a replica asks those again that refused it."""
_AWAY: Final = (502, 503)
"""Statuses of refusals that tell of the replica itself: it is being stopped, or not yet there."""


class Tries:
    """What one request has tried, and what is left for it.

    A replica that failed gets it again once it has become ready anew, and all do once another one
    has brought its client further. A stream that has begun goes on at servers of ours alone, at
    those of the build that it began with as long as there are any.
    """

    def __init__(self, fleet: Fleet, model: str | None) -> None:
        self._fleet = fleet
        self.model = model
        self.count = 0
        """How often it was sent."""
        self._troubles: dict[Replica, str] = {}
        """What became of the latest at each, the latest of all last."""
        self.refusal: RefusedError | None = None
        """The latest."""
        self.last: Replica | None = None
        self._life = 0  # that of the latest
        self._failures = 0
        self._broken = 0  # in a row
        self._failed: dict[Replica, int] = {}  # each in its life of that number
        self._refused: dict[Replica, int] = {}
        self._build: str | None = None
        self._gives_up_at: float | None = None

    @property
    def troubles(self) -> str:
        """What became of it at each replica that was tried, for a message."""
        return "; ".join(f"{replica.url}: {why}" for replica, why in self._troubles.items())

    @property
    def is_cause(self) -> bool:
        """Whether the request itself seems to be what ends replicas."""
        return self._broken >= MOST_BROKEN

    def begin(self, replica: Replica) -> None:
        """The request is sent to a replica."""
        self.count += 1
        self.last, self._life = replica, replica.lives

    def refused(self, replica: Replica, refusal: RefusedError) -> None:
        self.refusal = refusal
        self._note_trouble(replica, refusal)
        self._refused[replica] = self._life
        self._broken += refusal.engine_died

    def failed(self, replica: Replica, error: UpstreamError, got: bool) -> None:
        """``got``: something of its answer was passed on."""
        self._note_trouble(replica, error)
        self._failures += 1
        self._gives_up_at = None
        if got:
            self._broken = 0
            self._failed.clear()
            self._refused.clear()
        self._failed[replica] = self._life
        self._broken += not error.blameless

    def goes_on_from(self, replica: Replica) -> None:
        """The client has the beginning of a replica's answer, which another one is to continue;
        only the first call counts."""
        if self._build is None:
            self._build = replica.member.build

    def able(self) -> int:
        """The set of replicas that may be tried now."""
        if self._is_spent:
            return 0
        sets = self._fleet.sets
        able = sets.able(self.model)
        for replica, life in (*self._failed.items(), *self._refused.items()):
            if replica.number is not None and replica.lives == life:
                able &= ~(1 << replica.number)
        if self._build is not None:
            able = self._able_to_go_on(able, self._build)
        return sets.on_time(able)

    def _able_to_go_on(self, able: int, build: str) -> int:
        """Those of a set that can go on with a stream: of one build, else ours of any."""
        ours = alike = 0
        for number, replica in zip(bits(able), self._fleet.of(able), strict=True):
            if replica.is_ours:
                ours |= 1 << number
                alike |= (replica.member.build == build) << number
        return alike or ours

    async def wait(self) -> int:
        """The same set, once it is not empty; the empty set where none comes in time, or none is
        worth waiting for: all are full, or none has the model."""
        options = self._fleet.options
        if self._build is None and (self._is_full or self._is_unknown):
            return 0
        now = asyncio.get_running_loop().time
        if self._gives_up_at is None:
            patience = options.wait_s if self._build is None else options.resume_s
            self._gives_up_at = now() + patience
        with self._fleet.waiting():
            while self._failures < MOST and (left := self._gives_up_at - now()) > 0:
                await self._fleet.changed(min(left, _AGAIN_S))
                self._refused.clear()
                if able := self.able():
                    return able
        return 0

    def _note_trouble(self, replica: Replica, why: PenstockError) -> None:
        self._troubles.pop(replica, None)
        self._troubles[replica] = str(why)

    @property
    def _is_spent(self) -> bool:
        return self._failures + len(self._refused) >= MOST

    @property
    def _is_full(self) -> bool:
        return self.refusal is not None and self.refusal.head.status not in _AWAY

    @property
    def _is_unknown(self) -> bool:
        """Whether there are replicas, and none has the model."""
        return not self.count and self._fleet.ready(None) != 0
