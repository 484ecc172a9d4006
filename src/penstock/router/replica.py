"""One server behind the router."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from penstock.router.target import Target
from penstock.router.upstream import Pool

State = Literal["unknown", "ready", "draining", "down", "gone"]
"""Not looked at yet; takes requests; answers, and takes no new ones; does not answer; is no member
of the fleet any more."""


@dataclass(frozen=True)
class Member:
    """A server that a router is given."""

    url: str
    admin_key: str | None = None
    """Its admin key, which is sent to it if it is Penstock's."""
    build: str = ""
    """Servers of one build are alike: they answer with the same bits."""
    host: str = ""
    """The machine that it is on, where that is known."""
    pid: int | None = None
    """Its process there."""


LATE_S: Final = 1.0
"""Seconds after which a question of the router's own counts as not answered for now."""


@dataclass
class ReplicaCounts:
    """What came of its requests."""

    requests: int = 0
    """That were sent to it."""
    failures: int = 0
    """That it did not answer, or not to the end."""
    retried: int = 0
    """That another replica then answered, nothing of an answer having been sent."""
    resumed: int = 0
    """Streams that another replica then continued."""
    prompt_tokens: int = 0
    """Tokens of the requests that were sent to it, as far as they are known, else estimated."""
    cached_tokens: int = 0
    """Those of them that were expected to be in its cache."""

    def add(self, other: ReplicaCounts) -> None:
        """Add what came of another one's requests."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


_DECIDES: Final = frozenset({"state", "number", "models", "is_late", "synchronized"})
"""What decides to which sets of its fleet a replica belongs."""


def _unwatched() -> None:
    pass


@dataclass(eq=False)
class Replica:
    member: Member
    target: Target
    pool: Pool
    state: State = "unknown"
    trouble: str = ""
    """Why it is not ready."""
    lives: int = 0
    """How often it became ready: one that was away may be asked again for what failed there."""
    is_ours: bool = False
    """Whether it is a server of Penstock's, whose answers are the same for the same seed."""
    is_doubted: bool = False
    """Whether it knew nothing of what it was asked for, so that its models may be others now."""
    models: frozenset[str] | None = None
    """The models that it serves; None where it does not say, so that it is asked for any."""
    number: int | None = None
    """Its number in ``routing.Router``; None until it was first ready."""
    reports: bool = False
    """Whether it reports what its cache holds."""
    synchronized: bool = False
    """Whether all that it has reported is known."""
    epoch: str = ""
    """The life of its engine, which no two servers share; empty where it reports no cache."""
    is_late: bool = False
    """Whether it lets a question of the router's own wait. Others are preferred until it answers
    one: probes take seconds to say that it is gone."""
    counts: ReplicaCounts = field(default_factory=ReplicaCounts)
    changed: Callable[[], None] = field(default_factory=lambda: _unwatched)
    """Called when it belongs to other sets of its fleet than before."""

    @classmethod
    def of(cls, member: Member) -> Replica:
        """Raises ConfigError for what is no URL of a server."""
        target = Target.of(member.url)
        return cls(member, target, Pool(target))

    def __setattr__(self, name: str, value: Any) -> None:
        changes = name in _DECIDES and getattr(self, name, None) != value
        super().__setattr__(name, value)
        if changes and "changed" in self.__dict__:  # it was made
            self.changed()

    @property
    def url(self) -> str:
        return self.target.url

    def serves(self, model: str | None) -> bool:
        """Whether it may be asked for a model; None: whatever it has."""
        return model is None or self.models is None or model in self.models

    @contextmanager
    def questioned(self) -> Iterator[None]:
        """A question of the router's own: what is done within is the wait for its answer."""
        timer = asyncio.get_running_loop().call_later(LATE_S, self._note_late)
        try:
            yield
            self.is_late = False
        finally:
            timer.cancel()

    def _note_late(self) -> None:
        self.is_late = True
