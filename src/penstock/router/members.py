"""The servers of a fleet as they come and go, each with what looks after it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from penstock.router.fleet import Fleet
from penstock.router.probes import Prober
from penstock.router.replica import Member, Replica

_FIRST_LOOK_S: Final = 3.0
"""Seconds for which the first look at all servers is waited for."""

_log = logging.getLogger("penstock.router")


class Members:
    """Keeps a fleet to a list of servers, and probes each for as long as it is in the list."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._probed: dict[Member, tuple[Replica, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def set(self, members: Iterable[Member]) -> None:
        """Make these the servers of the fleet. Raises ConfigError for what is no URL of a server,
        and for one that is named twice; the fleet then lacks it and those after it."""
        wanted = list(members)
        for member in [each for each in self._probed if each not in wanted]:
            replica, probing = self._probed.pop(member)
            self._fleet.remove(replica)
            probing.cancel()
            self._ending.add(probing)
            probing.add_done_callback(self._ending.discard)
        for member in wanted:
            if member not in self._probed or wanted.count(member) > 1:
                replica = self._fleet.add(member)
                prober = Prober(self._fleet, replica)
                self._probed[member] = replica, asyncio.ensure_future(prober.run())

    def unresolved(self, url: str, trouble: str) -> None:
        """Note why the name in a URL has no addresses; an empty text where it has some."""
        known = self._fleet.unresolved
        if not trouble:
            known.pop(url, None)
        elif known.get(url) != trouble:
            known[url] = trouble
            _log.warning("%s: %s", url, trouble)

    async def looked_at(self) -> None:
        """Wait until something is known of each server, or for a while."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _FIRST_LOOK_S
        while any(replica.state == "unknown" for replica in self._fleet.replicas):
            left = until - loop.time()
            if left <= 0:
                return
            await self._fleet.changed(min(left, 0.05))

    async def aclose(self) -> None:
        """Probe nobody any more."""
        probing = [task for _, task in self._probed.values()] + list(self._ending)
        self._probed.clear()
        for task in probing:
            task.cancel()
        await asyncio.gather(*probing, return_exceptions=True)
