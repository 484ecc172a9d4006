"""Takes the connections of decode engines: threads that receive what they ask for, and send what
the engine's thread gives them."""

from __future__ import annotations

import contextlib
import enum
import logging
import queue
import socket
import threading
import time
from typing import Any, Final

from penstock.cache.geometry import BLOCK_SIZE
from penstock.engine.handover.handshake import Introduction, RefusedError
from penstock.engine.handover.inbox import Inbox
from penstock.engine.handover.link import Link, LinkEndedError
from penstock.engine.handover.sockets import prepare
from penstock.engine.handover.wire import (
    BEAT_S,
    MESSAGE_BYTES,
    Ask,
    Beat,
    Cancel,
    FromDecode,
    FromPrefill,
)
from penstock.errors import ConfigError
from penstock.handover_config import Address
from penstock.interface.blocks import Bytes
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


class Visitor:
    """A decode engine that is connected, as the engine's thread sees it."""

    def __init__(self, link: Link, name: str, wake: Wake) -> None:
        self.name = name
        self.link = link
        self._wake = wake
        self._queue: queue.SimpleQueue[tuple[FromPrefill, Bytes | None] | None] = (
            queue.SimpleQueue()
        )
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._gone = False

    @property
    def has_room(self) -> bool:
        """Whether another piece may be sent. A visitor that is gone takes everything."""
        return self._waiting_bytes < VISITOR_BYTES or self._gone

    def send(self, message: FromPrefill, content: Bytes | None = None) -> None:
        """Send it from another thread; nothing is sent to a visitor that is gone."""
        if self._gone:
            return
        with self._lock:
            self._waiting_bytes += 0 if content is None else len(content)
        self._queue.put((message, content))

    def close(self) -> None:
        self._gone = True
        self._queue.put(None)
        self.link.close()

    def write(self, listener: Listener) -> None:
        """The writing thread: sends what there is, and signs of life."""
        due = time.monotonic()
        try:
            while not self._gone:
                now = time.monotonic()
                if now >= due:
                    self.link.send(listener.beat)
                    due = now + BEAT_S
                try:
                    item = self._queue.get(timeout=max(due - now, 0.001))
                except queue.Empty:
                    continue
                if item is None:
                    return
                message, content = item
                self.link.send(message, content)
                if content is not None:
                    self._sent(len(content))
        except OSError as error:
            if not self._gone:
                _log.warning("the decode engine %s takes nothing more: %s", self.name, error)
            self.link.close()  # the reading thread then ends, too

    def _sent(self, num_bytes: int) -> None:
        with self._lock:
            full = self._waiting_bytes >= VISITOR_BYTES
            self._waiting_bytes -= num_bytes
            if full and self._waiting_bytes < VISITOR_BYTES:
                self._wake.set()


class Listener:
    """The socket on which a prefill engine listens."""

    def __init__(self, address: Address, wake: Wake) -> None:
        """Take the address, without listening yet. Raises ConfigError where it cannot be had."""
        self.wake = wake
        self.inbox: Inbox[tuple[Visitor, Arrival]] = Inbox(wake, 0)
        self.beat = Beat(0, 0.0)
        """How busy the engine is."""
        self._visitors: set[Visitor] = set()
        self._lock = threading.Lock()
        self._closed = False
        try:
            family, *_, found = socket.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._socket = _bound(family, found)
        except OSError as error:
            raise ConfigError(
                f"--handover-listen {address}: {error.strerror or error}; choose another address "
                "or port"
            ) from None

    @property
    def port(self) -> int:
        """The port, where 0 was asked for."""
        return int(self._socket.getsockname()[1])

    @property
    def num_visitors(self) -> int:
        return len(self._visitors)

    def start(self, introduction: Introduction, max_tokens: int) -> None:
        """Take connections, and prompts of up to ``max_tokens``."""
        self._socket.listen()
        threading.Thread(
            target=self._accept,
            args=(introduction, max_tokens),
            name="penstock-handover-listen",
            daemon=True,
        ).start()

    def tell(self, queued_tokens: int, tokens_per_s: float) -> None:
        """Note how busy the engine is, for the next signs of life."""
        self.beat = Beat(queued_tokens, tokens_per_s)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            visitors = list(self._visitors)
        for visitor in visitors:
            visitor.close()

    def _accept(self, introduction: Introduction, max_tokens: int) -> None:
        while True:
            try:
                sock, found = self._socket.accept()
            except OSError as error:
                if self._closed:
                    return
                _log.warning("a decode engine could not be taken: %s", error)
                time.sleep(0.1)  # as while there are no file descriptors left
                continue
            name = f"{found[0]}:{found[1]}"
            if len(self._visitors) >= _MOST_VISITORS:
                _log.warning("the decode engine %s is not taken: %d are here", name, _MOST_VISITORS)
                sock.close()
                continue
            threading.Thread(
                target=self._serve,
                args=(sock, name, introduction, max_tokens),
                name="penstock-handover-receive",
                daemon=True,
            ).start()

    def _serve(
        self, sock: socket.socket, name: str, introduction: Introduction, max_tokens: int
    ) -> None:
        """The receiving thread of one connection."""
        most = MESSAGE_BYTES + _TOKEN_BYTES * max_tokens
        link = Link(sock, FromDecode, most)
        visitor = Visitor(link, name, self.wake)
        try:
            prepare(sock)
            introduction.shake(link)
        except (OSError, WireError, RefusedError, LinkEndedError) as error:
            _log.warning("%s was not taken as a decode engine: %s", name, error)
            link.close()
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
        except LinkEndedError:
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
            message, _ = visitor.link.receive()
            match message:
                case Ask():
                    _check(message, last)
                    last = message.number
                case Cancel():
                    pass
                case _:
                    raise WireError(f"a {type(message).__name__} message came out of turn")
            self.inbox.put((visitor, message))


def _bound(family: int, found: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(found)
    except OSError:
        sock.close()
        raise
    return sock


def _check(ask: Ask, last: int) -> None:
    """Raise WireError for what no decode engine asks for."""
    blocks, rest = divmod(len(ask.token_ids), BLOCK_SIZE * _TOKEN_BYTES)
    if rest or not 0 <= ask.first < blocks:
        raise WireError(
            f"{len(ask.token_ids)} bytes of tokens from block {ask.first} are no prompt"
        )
    if ask.number <= last:
        raise WireError(f"handover {ask.number} was asked for after {last}")
