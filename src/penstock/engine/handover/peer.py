"""A prefill engine as a decode engine sees it: a connection that is made again whenever it ends,
and threads that wait for it."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.engine.handover.book import PeerBook
from penstock.engine.handover.handshake import Introduction
from penstock.engine.handover.inbox import Inbox
from penstock.engine.handover.rule import Load
from penstock.engine.handover.wire import (
    MESSAGE_BYTES,
    PIECE_BYTES,
    SILENCE_S,
    Ask,
    Beat,
    Blocks,
    Cancel,
    Ended,
    FromPrefill,
)
from penstock.errors import ConfigError
from penstock.interface.blocks import BlockBytes
from penstock.peers.address import Address
from penstock.peers.channel import Channel, EndedError, Inbound, Payload
from penstock.peers.handshake import HANDSHAKE_S
from penstock.peers.sockets import connect
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
        self._book = PeerBook(block_size)
        self._lock = threading.Lock()  # of _book and _channel
        self._channel: Channel[FromPrefill] | None = None
        self._outgoing: queue.SimpleQueue[Ask | Cancel | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._said = ""
        self._thread = threading.Thread(
            target=self._run, name="penstock-handover-peer", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    @property
    def connected(self) -> bool:
        return self._channel is not None

    @property
    def received_bytes(self) -> int:
        """Bytes of blocks that have come."""
        return self._book.received_bytes

    @property
    def bandwidth(self) -> float:
        """Bytes of blocks that come in a second."""
        return self._book.bandwidth

    @property
    def load(self) -> Load:
        """How busy it is: by what it has said, or what it was asked for since."""
        with self._lock:
            return self._book.load

    def ask(self, ask: Ask, blocks: int) -> bool:
        """Begin a handover of a prompt of so many blocks; False if there is no connection."""
        with self._lock:
            if self._channel is None:
                return False
            self._book.asked(ask, blocks, time.monotonic())
            self._outgoing.put(ask)
            return True

    def cancel(self, number: int) -> None:
        """End a handover; what still comes of it is dropped."""
        with self._lock:
            if self._book.end(number):
                self._outgoing.put(Cancel(number))

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            if self._channel is not None:
                self._channel.close()

    def _run(self) -> None:
        wait = _FIRST_WAIT_S
        while not self._closing.is_set():
            try:
                channel = self._connect()
            except ConfigError as error:
                self._say(f"it is not taken: {error}")
                wait = _REFUSED_WAIT_S
            except (OSError, WireError, EndedError) as error:
                found = isinstance(error, WireError | EndedError)
                hint = "; is a prefill engine what listens there?" if found else ""
                self._say(f"it cannot be reached: {error}{hint}")
                wait = min(2 * wait, _MOST_WAIT_S)
            else:
                self._said = ""
                _log.info("the prefill engine %s is connected", self.address)
                wait = _FIRST_WAIT_S
                self._say(self._serve(channel))
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

    def _connect(self) -> Channel[FromPrefill]:
        introduction = self._introduction
        largest = max(PIECE_BYTES, *introduction.group_bytes)
        inbound = Inbound(FromPrefill, MESSAGE_BYTES, largest)
        sock = connect(self.address, HANDSHAKE_S)
        channel = introduction.party.greet(sock, inbound, connected=True)
        try:
            introduction.exchange(channel)
            channel.set_timeout(SILENCE_S)
        except BaseException:
            channel.close()
            raise
        return channel

    def _serve(self, channel: Channel[FromPrefill]) -> str:
        """Receive until the connection ends; returns why."""
        outgoing: queue.SimpleQueue[Ask | Cancel | None] = queue.SimpleQueue()
        with self._lock:
            self._outgoing, self._channel = outgoing, channel
        if self._closing.is_set():
            channel.close()
        writer = threading.Thread(
            target=_write, args=(channel, outgoing), name="penstock-handover-ask", daemon=True
        )
        writer.start()
        try:
            why = self._receive(channel)
        finally:
            with self._lock:
                self._channel = None
                lost = self._book.end_all()
            outgoing.put(None)
            channel.close()
        for number in lost:
            self._inbox.put(Over(number, why))
        return why

    def _receive(self, channel: Channel[FromPrefill]) -> str:
        try:
            while True:
                frame = channel.receive()
                match message := frame.message:
                    case Blocks():
                        self._received(message, frame.payload, frame.payload_s)
                    case Ended():
                        self._ended(message)
                    case Beat():
                        with self._lock:
                            self._book.told(message)
                    case _:
                        raise WireError(f"a {type(message).__name__} message came out of turn")
                self._end_late()
        except TimeoutError:
            return f"nothing has come from it for {SILENCE_S:g} s"
        except (OSError, WireError, EndedError) as error:
            return str(error)

    def _received(self, message: Blocks, content: Payload, seconds: float) -> None:
        self._check_size(message, len(content))
        with self._lock:
            wanted = self._book.received(message, len(content), seconds, time.monotonic())
        if not wanted:
            return
        try:
            checksums = np.array(message.checksums, np.uint32)
        except (OverflowError, ValueError):
            raise WireError("a checksum is no number of 32 bits") from None
        piece = Piece(message.number, message.group, message.first, BlockBytes(content, checksums))
        self._inbox.put(piece, len(content))

    def _check_size(self, message: Blocks, num_bytes: int) -> None:
        sizes = self._introduction.group_bytes
        if not 0 <= message.group < len(sizes):
            raise WireError(f"there is no group {message.group} of layers")
        count, each = len(message.checksums), sizes[message.group]
        if num_bytes != count * each:
            raise WireError(f"{count} blocks of {each} bytes come with {num_bytes} bytes")

    def _ended(self, message: Ended) -> None:
        with self._lock:
            known = self._book.end(message.number)
        if known:
            self._inbox.put(Over(message.number, message.error))

    def _end_late(self) -> None:
        """Give up the handovers of which nothing has come for too long."""
        with self._lock:
            late = self._book.late(time.monotonic() - self._timeout_s)
        for number in late:
            self.cancel(number)
            why = f"no block has come for {self._timeout_s:g} s"
            self._inbox.put(Over(number, why))


def _write(channel: Channel[FromPrefill], outgoing: queue.SimpleQueue[Ask | Cancel | None]) -> None:
    with contextlib.suppress(OSError):
        while (message := outgoing.get()) is not None:
            channel.send(message)
        return
    channel.close()  # the receiving thread then ends, too
