"""What the books of a repository know of one model, and what they order to be done for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

State = Literal[
    "unloaded", "sizing", "queued", "loading", "ready", "closing", "unloading", "failed"
]
"""``sizing``: how much memory it needs is being found out. ``queued``: it waits for memory.
``closing``: it takes no new requests, and is unloaded once those that are open have ended."""
Deed = Literal["size", "load", "unload", "admit", "refuse"]

HOLDS: Final = ("loading", "ready", "closing", "unloading")


@dataclass(frozen=True)
class Order:
    """What is to be done for a model now.

    ``admit`` lets all requests that wait for it use it, and ``refuse`` has them fail with
    :attr:`failure`.
    """

    deed: Deed
    name: str
    failure: Exception | None = field(default=None, compare=False)


@dataclass
class Slot:
    """What the books know of one model."""

    name: str
    need: int | None = None
    """Bytes that it takes in memory; None until that was found out."""
    usual_keep_s: float | None = None
    """What :attr:`keep_s` is unless a request says otherwise."""
    keep_s: float | None = None
    """Seconds without requests after which it is unloaded; None: only for others."""
    state: State = "unloaded"
    open: int = 0
    """Requests that use it as it is loaded now."""
    waiting: int = 0
    """Requests that wait until it is loaded."""
    life: int = 0
    """How often it was loaded: requests of an earlier life do not hold a later one."""
    used_at: float = 0.0
    """When a request came or left last."""
    failure: Exception | None = None
    failures: int = 0
    """Loads in a row that failed."""
    loads: int = 0
    unloads: int = 0
    failed_loads: int = 0
    retry_at: float = 0.0
    asked: bool = False
    """Whether it is to be loaded although no request waits."""
    ticket: int = 0
    """Its place in the queue for memory."""
    queued_at: float = 0.0
    for_room: bool = False
    """While it is closing: others need its memory, so it may stay if they do not any more."""
    unwanted: bool = False
    """While it is loading: it is to be unloaded when that is done."""
    stale: bool = False
    """Its entry has changed since it was sized or loaded, or since that was begun."""
    removed: bool = False

    @property
    def is_idle(self) -> bool:
        return self.state == "ready" and not self.open

    @property
    def wanted(self) -> bool:
        return self.waiting > 0 or self.asked

    @property
    def expires_at(self) -> float:
        """When it has been without requests for too long; infinity where it may stay."""
        if self.keep_s is None or not self.is_idle:
            return float("inf")
        return self.used_at + self.keep_s

    # What becomes of it, and what is to be done then

    def size(self) -> list[Order]:
        """Have it be found out how much memory it needs."""
        self.state, self.stale, self.need = "sizing", False, None
        return [Order("size", self.name)]

    def forget_need(self) -> None:
        """Forget what it needs if its entry has changed; it is neither sized nor loaded."""
        if self.stale:
            self.need, self.stale = None, False

    def close(self, for_room: bool = False) -> None:
        """Have it leave, if it is loaded, once no request uses it."""
        if self.state in ("ready", "closing"):
            self.state, self.for_room = "closing", for_room

    def admit(self) -> list[Order]:
        """Let those use it that wait for it."""
        if not self.waiting:
            return []
        self.open += self.waiting
        self.waiting = 0
        return [Order("admit", self.name)]

    def refuse(self, failure: Exception) -> list[Order]:
        """Have those fail that wait for it."""
        self.failure = failure
        if not self.waiting:
            return []
        self.waiting = 0
        return [Order("refuse", self.name, failure)]
