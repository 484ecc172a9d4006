"""A prefill engine as a decode engine sees it: a connection that is made again whenever it ends,
and threads that wait for it."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from penstock.engine.handover.handshake import Introduction, RefusedError
from penstock.engine.handover.inbox import Inbox
from penstock.engine.handover.link import Link, LinkEndedError
from penstock.engine.handover.rule import FIRST_BANDWIDTH, Load, Measured
from penstock.engine.handover.sockets import prepare
from penstock.engine.handover.wire import (
    HANDSHAKE_S,
    MESSAGE_BYTES,
    SILENCE_S,
    Ask,
    Beat,
    Blocks,
    Cancel,
    Ended,
    FromPrefill,
)
from penstock.handover_config import Address
from penstock.interface.blocks import BlockBytes, Bytes
from penstock.processes.frames import WireError

_FIRST_WAIT_S: Final = 0.2
_MOST_WAIT_S: Final = 10.0
_REFUSED_WAIT_S: Final = 30.0

_log = logging.getLogger("penstock.handover")


@dataclass(frozen=True)
class Piece:
    """Blocks of a handover that have come, unchecked."""

    number: int
    group: int
    first: int
    content: BlockBytes


@dataclass(frozen=True)
class Over:
    """Nothing more comes of a handover, which has failed if there is an ``error``."""

    number: int
    error: str = ""


@dataclass
class _Open:
    """A handover that was asked for."""

    blocks: int
    """All blocks of the prompt, those not asked for included."""
    left_tokens: int
    progress_at: float


class Peer:
    """One prefill engine. What comes from it goes into the engine's inbox."""

    def __init__(
        self,
        address: Address,
        introduction: Introduction,
        inbox: Inbox[Piece | Over],
        timeout_s: float,
        block_size: int,
    ) -> None:
        self.address = address
        self._introduction = introduction
        self._inbox = inbox
        self._timeout_s = timeout_s
        self._block_size = block_size
        self._load = Load(0, 0.0)
        self._bandwidth = Measured(FIRST_BANDWIDTH)
        self._open: dict[int, _Open] = {}
        self._lock = threading.Lock()  # of _open and _link
        self._link: Link | None = None
        self._outgoing: queue.SimpleQueue[Ask | Cancel | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._said = ""
        self.received_bytes = 0
        """Bytes of blocks that have come."""
        self._thread = threading.Thread(
            target=self._run, name="penstock-handover-peer", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    @property
    def connected(self) -> bool:
        return self._link is not None

    @property
    def bandwidth(self) -> float:
        """Bytes of blocks that come in a second."""
        return self._bandwidth.value

    @property
    def load(self) -> Load:
        """How busy it is: by what it has said, or what it was asked for since."""
        with self._lock:
            own = sum(each.left_tokens for each in self._open.values())
        return replace(self._load, queued_tokens=max(own, self._load.queued_tokens))

    def ask(self, ask: Ask, blocks: int) -> bool:
        """Begin a handover of a prompt of so many blocks; False if there is no connection."""
        with self._lock:
            if self._link is None:
                return False
            left = (blocks - ask.first) * self._block_size
            self._open[ask.number] = _Open(blocks, left, time.monotonic())
            self._outgoing.put(ask)
            return True

    def cancel(self, number: int) -> None:
        """End a handover; what still comes of it is dropped."""
        with self._lock:
            if self._open.pop(number, None) is not None:
                self._outgoing.put(Cancel(number))

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            if self._link is not None:
                self._link.close()

    def _run(self) -> None:
        wait = _FIRST_WAIT_S
        while not self._closing.is_set():
            try:
                link = self._connect()
            except RefusedError as error:
                self._say(f"it is not taken: {error}")
                wait = _REFUSED_WAIT_S
            except (OSError, WireError, LinkEndedError) as error:
                self._say(f"it cannot be reached: {error}")
                wait = min(2 * wait, _MOST_WAIT_S)
            else:
                self._said = ""
                _log.info("the prefill engine %s is connected", self.address)
                wait = _FIRST_WAIT_S
                self._say(self._serve(link))
            self._closing.wait(wait)

    def _say(self, what: str) -> None:
        """Log why there is no connection, once."""
        if what != self._said and not self._closing.is_set():
            self._said = what
            _log.warning(
                "the prefill engine %s: %s; prompts are computed here meanwhile",
                self.address,
                what,
            )

    def _connect(self) -> Link:
        address = (self.address.host, self.address.port)
        sock = socket.create_connection(address, timeout=HANDSHAKE_S)
        link = Link(sock, FromPrefill, MESSAGE_BYTES)
        try:
            prepare(sock)
            self._introduction.shake(link)
            link.set_timeout(SILENCE_S)
        except BaseException:
            link.close()
            raise
        return link

    def _serve(self, link: Link) -> str:
        """Receive until the connection ends; returns why."""
        outgoing: queue.SimpleQueue[Ask | Cancel | None] = queue.SimpleQueue()
        with self._lock:
            self._outgoing, self._link = outgoing, link
        if self._closing.is_set():
            link.close()
        writer = threading.Thread(
            target=_write, args=(link, outgoing), name="penstock-handover-ask", daemon=True
        )
        writer.start()
        try:
            why = self._receive(link)
        finally:
            with self._lock:
                self._link = None
                lost = list(self._open)
                self._open.clear()
            outgoing.put(None)
            link.close()
        for number in lost:
            self._inbox.put(Over(number, why))
        return why

    def _receive(self, link: Link) -> str:
        try:
            while True:
                message, content = link.receive()
                match message:
                    case Blocks():
                        assert content is not None
                        self._received(message, content, link.content_s)
                    case Ended():
                        self._ended(message)
                    case Beat():
                        self._load = Load(message.queued_tokens, message.tokens_per_s)
                    case _:
                        raise WireError(f"a {type(message).__name__} message came out of turn")
                self._end_late()
        except TimeoutError:
            return f"nothing has come from it for {SILENCE_S:g} s"
        except (OSError, WireError, LinkEndedError) as error:
            return str(error)

    def _received(self, message: Blocks, content: Bytes, seconds: float) -> None:
        self.received_bytes += len(content)
        self._bandwidth.add(len(content), seconds)
        with self._lock:
            handover = self._open.get(message.number)
            if handover is None:  # it was cancelled
                return
            end = message.first + len(message.checksums)
            if not 0 <= message.first < end <= handover.blocks:
                raise WireError(
                    f"blocks {message.first} to {end} came of a prompt of {handover.blocks}"
                )
            handover.progress_at = time.monotonic()
            left = (handover.blocks - end) * self._block_size
            handover.left_tokens = min(handover.left_tokens, left)
        try:
            checksums = np.array(message.checksums, np.uint32)
        except (OverflowError, ValueError):
            raise WireError("a checksum is no number of 32 bits") from None
        piece = Piece(message.number, message.group, message.first, BlockBytes(content, checksums))
        self._inbox.put(piece, len(content))

    def _ended(self, message: Ended) -> None:
        with self._lock:
            known = self._open.pop(message.number, None) is not None
        if known:
            self._inbox.put(Over(message.number, message.error))

    def _end_late(self) -> None:
        """Give up the handovers of which nothing has come for too long."""
        now = time.monotonic()
        with self._lock:
            late = [
                number
                for number, each in self._open.items()
                if now - each.progress_at > self._timeout_s
            ]
        for number in late:
            self.cancel(number)
            why = f"no block has come for {self._timeout_s:g} s"
            self._inbox.put(Over(number, why))


def _write(link: Link, outgoing: queue.SimpleQueue[Ask | Cancel | None]) -> None:
    with contextlib.suppress(OSError):
        while (message := outgoing.get()) is not None:
            link.send(message)
        return
    link.close()  # the receiving thread then ends, too
