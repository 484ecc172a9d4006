"""Takes the connections of decode engines: threads that receive what they ask for, and send what
the engine's thread gives them."""

from __future__ import annotations

import enum
import logging
import queue
import threading
import time
from typing import Final, NamedTuple

from penstock.cache.geometry import BLOCK_SIZE
from penstock.engine.handover.handshake import Introduction
from penstock.engine.handover.inbox import Inbox
from penstock.engine.handover.wire import (
    BEAT_S,
    MESSAGE_BYTES,
    Ask,
    Beat,
    Cancel,
    FromDecode,
    FromPrefill,
)
from penstock.errors import ConfigError, PenstockError
from penstock.peers.address import Address
from penstock.peers.channel import Channel, EndedError, Inbound, Payload
from penstock.peers.listener import Listener
from penstock.processes.frames import WireError
from penstock.processes.wake import Wake

VISITOR_BYTES: Final = 64 << 20
"""Most bytes of copies that wait to be sent to one decode engine, and the piece that exceeds it."""
_MOST_VISITORS: Final = 64
_TOKEN_BYTES: Final = 4

_log = logging.getLogger("penstock.handover")


class Gone(enum.Enum):
    """What stands in the place of a message: the decode engine is gone."""

    GONE = enum.auto()


Arrival = Ask | Cancel | Gone


class _Outgoing(NamedTuple):
    message: FromPrefill
    payload: tuple[Payload, ...]

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.payload))


class Visitor:
    """A decode engine that is connected, as the engine's thread sees it."""

    def __init__(self, channel: Channel[FromDecode], name: str, wake: Wake) -> None:
        self.name = name
        self.channel = channel
        self._wake = wake
        self._queue: queue.SimpleQueue[_Outgoing | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._gone = False

    @property
    def has_room(self) -> bool:
        """Whether another piece may be sent. A visitor that is gone takes everything."""
        return self._waiting_bytes < VISITOR_BYTES or self._gone

    def send(self, message: FromPrefill, *payload: Payload) -> None:
        """Send it from another thread; nothing is sent to a visitor that is gone."""
        if self._gone:
            return
        outgoing = _Outgoing(message, payload)
        with self._lock:
            self._waiting_bytes += outgoing.num_bytes
        self._queue.put(outgoing)

    def close(self) -> None:
        self._gone = True
        self._queue.put(None)
        self.channel.close()

    def write(self, visitors: Visitors) -> None:
        """The writing thread: sends what there is, and signs of life."""
        due = time.monotonic()
        try:
            while not self._gone:
                now = time.monotonic()
                if now >= due:
                    self.channel.send(visitors.beat)
                    due = now + BEAT_S
                try:
                    item = self._queue.get(timeout=max(due - now, 0.001))
                except queue.Empty:
                    continue
                if item is None:
                    return
                self.channel.send(item.message, *item.payload)
                self._sent(item.num_bytes)
        except OSError as error:
            if not self._gone:
                _log.warning("the decode engine %s takes nothing more: %s", self.name, error)
            self.channel.close()  # the reading thread then ends, too

    def _sent(self, num_bytes: int) -> None:
        with self._lock:
            full = self._waiting_bytes >= VISITOR_BYTES
            self._waiting_bytes -= num_bytes
            if full and self._waiting_bytes < VISITOR_BYTES:
                self._wake.set()


class Visitors:
    """The decode engines that are connected to a prefill engine."""

    def __init__(self, address: Address, wake: Wake) -> None:
        """Take the address, without listening yet. Raises ConfigError where it cannot be had."""
        self._listener = Listener(address, "--handover-listen")
        self.address = self._listener.address
        self.wake = wake
        self.inbox: Inbox[tuple[Visitor, Arrival]] = Inbox(wake, 0)
        self.beat = Beat(0, 0.0)
        """How busy the engine is."""
        self._visitors: set[Visitor] = set()
        self._lock = threading.Lock()
        self._closed = False

    def __len__(self) -> int:
        return len(self._visitors)

    def start(self, introduction: Introduction, max_tokens: int) -> None:
        """Take connections, and prompts of up to ``max_tokens``."""
        inbound = Inbound(FromDecode, MESSAGE_BYTES + _TOKEN_BYTES * max_tokens)

        def serve(channel: Channel[FromDecode], name: str) -> None:
            self._serve(channel, name, introduction)

        self._listener.start(introduction.party, inbound, serve, _log.warning)

    def tell(self, queued_tokens: int, tokens_per_s: float) -> None:
        """Note how busy the engine is, for the next signs of life."""
        self.beat = Beat(queued_tokens, tokens_per_s)

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        with self._lock:
            visitors = list(self._visitors)
        for visitor in visitors:
            visitor.close()

    def _serve(self, channel: Channel[FromDecode], name: str, introduction: Introduction) -> None:
        """The receiving thread of one connection."""
        visitor = Visitor(channel, name, self.wake)
        try:
            if len(self._visitors) >= _MOST_VISITORS:
                raise ConfigError(f"{_MOST_VISITORS} are here")
            introduction.exchange(channel)
        except (OSError, PenstockError) as error:
            _log.warning("%s is not taken as decode engine: %s", name, error)
            channel.close()
            return
        with self._lock:
            self._visitors.add(visitor)
        if self._closed:
            visitor.close()
        threading.Thread(
            target=visitor.write, args=(self,), name="penstock-handover-send", daemon=True
        ).start()
        try:
            self._receive(visitor)
        except EndedError:
            pass
        except (OSError, WireError) as error:
            if not self._closed:
                _log.warning("the decode engine %s was left: %s", name, error)
        finally:
            visitor.close()
            with self._lock:
                self._visitors.discard(visitor)
            self.inbox.put((visitor, Gone.GONE))

    def _receive(self, visitor: Visitor) -> None:
        last = -1
        while True:
            message = visitor.channel.receive().message
            match message:
                case Ask():
                    _check(message, last)
                    last = message.number
                case Cancel():
                    pass
                case _:
                    raise WireError(f"a {type(message).__name__} message came out of turn")
            self.inbox.put((visitor, message))


def _check(ask: Ask, last: int) -> None:
    """Raise WireError for what no decode engine asks for."""
    blocks, rest = divmod(len(ask.token_ids), BLOCK_SIZE * _TOKEN_BYTES)
    if rest or not 0 <= ask.first < blocks:
        raise WireError(
            f"{len(ask.token_ids)} bytes of tokens from block {ask.first} are no prompt"
        )
    if ask.number <= last:
        raise WireError(f"handover {ask.number} was asked for after {last}")
