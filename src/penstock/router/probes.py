"""Looking after a replica: whether it takes requests, what it is, and what it serves."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import Final

import msgspec

from penstock.router.exchange import Headers, UpstreamError
from penstock.router.fleet import Fleet
from penstock.router.follower import Follower
from penstock.router.headers import via
from penstock.router.reading import read, said
from penstock.router.replica import Replica

_PATIENCE: Final = 5.0
"""Seconds for the answer to a probe."""
_LOST: Final = 2
"""Probes in a row that fail before a replica that was ready is down: one alone may have met a
moment in which its machine was busy."""
_AGAIN_S: Final = 10.0
"""Seconds after which is asked again what a replica is and serves: models come and go."""
_MAX_ANSWER: Final = 4 << 20
_NOT_THERE: Final = (404, 405)

_log = logging.getLogger("penstock.router")


class _Card(msgspec.Struct):
    id: str
    aliases: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def names(self) -> list[str]:
        return [self.id, *(read(self.aliases, list[str]) or ())]


class _Cards(msgspec.Struct):
    data: list[_Card]


class Prober:
    """Probes one replica for ever, and follows its cache while it is up."""

    def __init__(self, fleet: Fleet, replica: Replica) -> None:
        self._fleet = fleet
        self._replica = replica
        self._lost = 0
        self._identify_at = 0.0
        self._told = ""
        self._timeouts = replace(
            fleet.options.timeouts, head=_PATIENCE, idle=_PATIENCE, connect=_PATIENCE
        )
        self._following: asyncio.Task[None] | None = None

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self.look()
                except Exception:  # a defect must not leave the replica unwatched
                    _log.exception("probing %s failed", self._replica.url)
                await asyncio.sleep(self._fleet.options.probe_s)
        finally:
            self.close()

    def close(self) -> None:
        """Follow the replica's cache no more."""
        if self._following is not None:
            self._following.cancel()
            self._following = None

    async def look(self) -> None:
        """Look once."""
        fleet, replica = self._fleet, self._replica
        try:
            status, body = await self._ready()
            if status < 300 and (replica.is_doubted or time.monotonic() >= self._identify_at):
                await self._identify()
        except UpstreamError as error:
            self._lost += 1
            if replica.state != "ready" or self._lost >= _LOST or error.stage == "connect":
                self._identify_at = 0.0
                fleet.now(replica, "down", str(error))
                replica.pool.give_up("it answers no probe any more")
            return
        self._lost = 0
        if status < 300:
            fleet.now(replica, "ready")
        else:
            told = said(body) or f"status {status}"
            fleet.now(replica, "draining" if replica.is_ours else "down", told)

    async def _ready(self) -> tuple[int, bytes]:
        """The answer to whether it takes requests, from the first path that there is."""
        status, body = 0, b""
        for path in ("/ready", "/health", "/v1/models"):
            status, body = await self._ask(path)
            if status not in _NOT_THERE:
                break
        if path == "/v1/models" and status in (401, 403):  # it lives; clients have the key
            status = 200
        return status, body

    async def _identify(self) -> None:
        """Find out what a replica is, and follow its cache if it reports it. Raises
        UpstreamError."""
        fleet, replica = self._fleet, self._replica
        status, body = await self._ask("/health")
        # Penstock's /health needs no key, so the key is sent to nobody else.
        replica.is_ours = status == 200 and body.strip() == b'{"status":"alive"}'
        key = replica.member.admin_key if replica.is_ours else None
        headers = () if key is None else ((b"authorization", b"Bearer " + key.encode()),)
        status, body = await self._ask("/v1/models", headers)
        cards = read(body, _Cards) if status == 200 else None
        if status == 200 and cards is None:
            self._tell(f"{replica.url} does not list its models, and is asked for any")
        replica.models = (
            None if cards is None else frozenset(name for card in cards.data for name in card.names)
        )
        replica.is_doubted = False
        reports = False
        if replica.is_ours and key is None:
            self._tell(
                f"{replica.url}: without its admin key (PENSTOCK_ADMIN_KEY) the router does not "
                "learn what its cache holds, and goes by what it has sent there"
            )
        elif replica.is_ours:
            status, body = await self._ask("/admin/status", headers)
            reports = status == 200
            if not reports:
                self._tell(
                    f"{replica.url} does not take the admin key, so the router goes by what it has "
                    f"sent there: {said(body) or f'status {status}'}"
                )
        number = replica.number
        fleet.joined(replica, reports)
        self._identify_at = time.monotonic() + _AGAIN_S
        if not reports or replica.number != number:
            self.close()
        if reports and self._following is None:
            follower = Follower(fleet, replica, headers)
            self._following = asyncio.ensure_future(follower.run())

    async def _ask(self, path: str, headers: Headers = ()) -> tuple[int, bytes]:
        with self._replica.questioned():
            return await self._replica.pool.fetch(
                "GET", path, [*headers, via(self._fleet.name)], b"", self._timeouts, _MAX_ANSWER
            )

    def _tell(self, line: str) -> None:
        if line != self._told:
            self._told = line
            _log.warning("%s", line)
