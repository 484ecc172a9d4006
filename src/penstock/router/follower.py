"""Following what the cache of one of our servers holds, by its events."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

import msgspec

from penstock.errors import PenstockError
from penstock.router.exchange import Exchange, Headers, UpstreamError
from penstock.router.fleet import Fleet
from penstock.router.replica import Replica
from penstock.routing.query import KEY_BYTES

SILENCE_S: Final = 10.0
"""Seconds without an event after which the connection counts as lost: a server sends one every
2 s."""
_AGAIN_S: Final = 0.5
_MAX_EVENT: Final = 256 << 20
"""Bytes of an event: those of all keys of a cache of 12 million blocks."""

_log = logging.getLogger("penstock.router")


class CacheEvent(msgspec.Struct, frozen=True):
    """An event of ``/admin/cache/events``; the server's struct says what it means."""

    epoch: str
    since: int | None
    until: int
    added: bytes
    removed: bytes


class GapError(PenstockError):
    """An event does not follow the one before it."""


class Follower:
    """Keeps the book of one replica.

    It goes on where it was after a broken connection, gets all keys where that is not possible, and
    again where an event does not follow the one before it.
    """

    def __init__(self, fleet: Fleet, at: Replica, headers: Headers) -> None:
        self._fleet = fleet
        self._replica = at
        self._headers = headers
        self._epoch = ""
        self._position: int | None = None
        self._timeouts = replace(fleet.options.timeouts, head=SILENCE_S, idle=SILENCE_S)
        self._trouble = ""
        self.snapshots = 0
        """How often all keys came."""

    async def run(self) -> None:
        while True:
            try:
                await self._follow()
            except UpstreamError as error:
                self._tell(str(error))
            except GapError as error:
                self._position = None
                _log.warning("%s: %s; all is read again", self._replica.url, error)
            except Exception:  # a defect must not leave the cache without a follower
                self._position = None
                _log.exception("following the cache of %s failed", self._replica.url)
            await asyncio.sleep(_AGAIN_S)

    async def _follow(self) -> None:
        path = "/admin/cache/events"
        if self._position is not None:
            path += f"?epoch={self._epoch}&after={self._position}"
        exchange = await self._replica.pool.exchange(
            "GET", path, self._headers, b"", self._timeouts
        )
        try:
            if exchange.status != 200:
                raise UpstreamError("head", f"status {exchange.status}")
            await self._read(exchange)
        finally:
            exchange.close()

    async def _read(self, exchange: Exchange) -> None:
        waiting, seen = bytearray(), 0  # in what has been seen no event ends
        while data := await exchange.read():
            waiting += data
            while (end := waiting.find(b"\n\n", seen)) >= 0:
                self.take(bytes(waiting[:end]))
                del waiting[: end + 2]
                seen = 0
            seen = max(len(waiting) - 1, 0)
            if len(waiting) > _MAX_EVENT:
                raise UpstreamError("body", f"an event of more than {_MAX_EVENT >> 20} MiB")

    def take(self, data: bytes) -> None:
        """Take an event, without the empty line behind it. Raises GapError for one that is
        misplaced or malformed."""
        try:
            event = msgspec.json.decode(data.removeprefix(b"data: "), type=CacheEvent)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise GapError(f"an event of its cache is malformed: {error}") from None
        if len(event.added) % KEY_BYTES or len(event.removed) % KEY_BYTES:
            raise GapError("an event of its cache has half a key")
        number = self._replica.number
        if number is None or not self._replica.reports:
            return
        book = self._fleet.router.reported(number)
        if event.since is None:
            book.replace(event.added)
            self.snapshots += 1
            self._check_alone(event.epoch)
        elif event.epoch != self._epoch or event.since != self._position:
            raise GapError(
                f"an event of its cache follows {event.since} of {event.epoch}, and the last one "
                f"was {self._position} of {self._epoch}"
            )
        else:
            book.change(event.added, event.removed)
        self._epoch, self._position = event.epoch, event.until
        self._replica.synchronized = True
        self._trouble = ""

    def _check_alone(self, epoch: str) -> None:
        """Tell whoever has named one server by two URLs."""
        at = self._replica
        at.epoch = epoch
        for other in self._fleet.replicas:
            if other is not at and other.epoch == epoch:
                _log.warning(
                    "%s and %s are one server: name it once, since it gets the requests of two",
                    *(other.url, at.url),
                )

    def _tell(self, trouble: str) -> None:
        """Log why the connection is gone, once for as long as it is for the same reason."""
        if trouble != self._trouble:
            self._trouble = trouble
            _log.info("%s: the events of its cache: %s", self._replica.url, trouble)
