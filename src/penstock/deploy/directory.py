"""Where Ray says which replicas run, and the fleet of this process hears of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from penstock.router.replica import Member

Follow = Callable[[Collection[Member]], None]


class Noted(msgspec.Struct, frozen=True):
    """What a replica notes once it is ready, for whoever routes to it; Ray passes it on."""

    url: str
    admin_key: str
    build: str
    """Replicas of one build answer with the same bits."""
    pid: int
    """The process of the server's guardian."""
    host: str
    """The machine that it is on."""

    @property
    def member(self) -> Member:
        return Member(self.url, self.admin_key, self.build, self.host, self.pid)


class Directory:
    """The replicas of deployments as Ray told them last. Ray tells from a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: dict[str, tuple[Member, ...]] = {}
        self._follow: dict[str, Follow] = {}

    def publish(self, deployment: str, noted: Collection[dict[str, Any]]) -> None:
        """Take what Ray tells: of each replica that runs and is to be sent requests, what it
        noted."""
        members = tuple(msgspec.convert(each, Noted).member for each in noted if each)
        with self._lock:
            self._told[deployment] = members
            follow = self._follow.get(deployment)
        if follow is not None:
            follow(members)

    def follow(self, deployment: str, follow: Follow) -> None:
        """Have ``follow`` called with the replicas now, and whenever others run; in the thread of
        whoever tells."""
        with self._lock:
            self._follow[deployment] = follow
            members = self._told.get(deployment)
        if members is not None:
            follow(members)


DIRECTORY: Final = Directory()
"""That of this process: Ray makes request routers by itself, of values that JSON has."""
