"""What a simulated prefill engine and a simulated decode engine have between them: requests one
way, blocks the other, each with the time at which it comes.

The books are those of the engines (``engine/handover/book.py``), on the clocks of both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import floor
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from penstock.engine.handover.book import PeerBook
from penstock.engine.handover.peer import Over, Piece
from penstock.engine.handover.rule import Load
from penstock.engine.handover.visitors import VISITOR_BYTES, Arrival
from penstock.engine.handover.wire import BEAT_S, Ask, Beat, Blocks, Cancel, Ended, FromPrefill
from penstock.interface.blocks import BlockBytes
from penstock.peers.address import Address
from penstock.peers.channel import Payload
from penstock.simulate.front_end import NEVER

T = TypeVar("T")

COPY_BYTE_S: Final = 1.5e-10
"""Seconds to read a byte of a block from a cache, or to write it into one, with its checksum: 6 to
7 GB/s by one thread (docs/disaggregation.md)."""

Clock = Callable[[], float]
"""The time at an engine: where its loop stands."""


@dataclass(frozen=True)
class Way:
    """The way from one engine to the other."""

    seconds: float
    byte: float
    """Seconds for each byte."""


class TimedInbox(Generic[T]):
    """What comes at its time, as an engine finds it at that of its own loop."""

    def __init__(self, now: Clock) -> None:
        self._now = now
        self._items: list[tuple[float, int, T, int]] = []
        self._count = 0

    def __bool__(self) -> bool:
        return self.next_at <= self._now()

    @property
    def next_at(self) -> float:
        """When the first comes of what was not taken yet."""
        return self._items[0][0] if self._items else NEVER

    def put(self, at: float, item: T, num_bytes: int = 0) -> None:
        self._count += 1
        heappush(self._items, (at, self._count, item, num_bytes))

    def take(self, budget: int = 1 << 62) -> list[T]:
        """Remove what has come, at least one if there is one, of about ``budget`` bytes."""
        taken: list[T] = []
        while self and budget > 0:
            _, _, item, num_bytes = heappop(self._items)
            budget -= num_bytes
            taken.append(item)
        return taken

    def close(self) -> None:
        """Nobody waits."""


class Memory:
    """Blocks without content, which take their time to be copied."""

    def __init__(self, group_bytes: tuple[int, ...], spend: Callable[[float], None]) -> None:
        self.group_bytes = group_bytes
        self._spend = spend

    def read(self, group: int, blocks: Sequence[int]) -> BlockBytes:
        size = self.group_bytes[group] * len(blocks)
        self._spend(size * COPY_BYTE_S)
        nothing = np.broadcast_to(np.zeros(1, np.uint8), (size,))
        return BlockBytes(nothing, np.zeros(len(blocks), np.uint32))

    def write(self, group: int, blocks: Sequence[int], content: BlockBytes) -> None:
        self._spend(self.group_bytes[group] * len(blocks) * COPY_BYTE_S)


class _Sent(NamedTuple):
    arrives: float
    message: FromPrefill
    num_bytes: int
    seconds: float


class Visitor:
    """The decode engine as a prefill engine sees it: what it sends goes one behind the other."""

    def __init__(self, way: Way, now: Clock) -> None:
        self._way = way
        self._now = now
        self._free = 0.0
        self._leaving: deque[tuple[float, int]] = deque()
        self._waiting = 0
        self.sent: deque[_Sent] = deque()

    @property
    def has_room(self) -> bool:
        now = self._now()
        while self._leaving and self._leaving[0][0] <= now:
            self._waiting -= self._leaving.popleft()[1]
        return self._waiting < VISITOR_BYTES

    @property
    def room_at(self) -> float:
        """When more leaves of what waits; infinite where nothing does."""
        return self._leaving[0][0] if self._leaving else NEVER

    def send(self, message: FromPrefill, *payload: Payload) -> None:
        num_bytes = sum(map(len, payload))
        took = num_bytes * self._way.byte
        self._free = max(self._free, self._now()) + took
        if num_bytes:
            self._waiting += num_bytes
            self._leaving.append((self._free, num_bytes))
        self.sent.append(_Sent(self._free + self._way.seconds, message, num_bytes, took))


class Visitors:
    """The one decode engine of a prefill engine."""

    def __init__(self, way: Way, now: Clock) -> None:
        self.visitor = Visitor(way, now)
        self.inbox: TimedInbox[tuple[Visitor, Arrival]] = TimedInbox(now)
        self.told: deque[tuple[float, Beat]] = deque()
        self._now = now

    def __len__(self) -> int:
        return 1

    def tell(self, queued_tokens: int, tokens_per_s: float) -> None:
        self.told.append((self._now(), Beat(queued_tokens, tokens_per_s)))

    def close(self) -> None:
        """There are no sockets."""


class Peer:
    """A prefill engine as the decode engine sees it."""

    connected = True

    def __init__(self, number: int, visitors: Visitors, way: Way, now: Clock, block: int) -> None:
        self.address = Address("prefill", number + 1)
        self._visitors = visitors
        self._way = way
        self._now = now
        self._book = PeerBook(block)

    @property
    def bandwidth(self) -> float:
        return self._book.bandwidth

    @property
    def received_bytes(self) -> int:
        return self._book.received_bytes

    @property
    def load(self) -> Load:
        """How busy it is, by what it has said last: it speaks every second."""
        spoken = floor((self._now() - self._way.seconds) / BEAT_S) * BEAT_S
        told = self._visitors.told
        while told and told[0][0] <= spoken:
            self._book.told(told.popleft()[1])
        return self._book.load

    @property
    def next_at(self) -> float:
        """When the next message comes."""
        sent = self._visitors.visitor.sent
        return sent[0].arrives if sent else NEVER

    def ask(self, ask: Ask, blocks: int) -> bool:
        self._book.asked(ask, blocks, self._now())
        self._tell(ask)
        return True

    def cancel(self, number: int) -> None:
        if self._book.end(number):
            self._tell(Cancel(number))

    def _tell(self, message: Arrival) -> None:
        at = self._now() + self._way.seconds
        self._visitors.inbox.put(at, (self._visitors.visitor, message))

    def receive(self, inbox: TimedInbox[Piece | Over]) -> None:
        """Take in what has come, and put what is wanted of it into the engine's inbox."""
        sent = self._visitors.visitor.sent
        while sent and sent[0].arrives <= self._now():
            each = sent.popleft()
            match message := each.message:
                case Blocks():
                    size = each.num_bytes
                    if self._book.received(message, size, each.seconds, each.arrives):
                        sums = np.zeros(len(message.checksums), np.uint32)
                        content = BlockBytes(np.broadcast_to(np.zeros(1, np.uint8), (size,)), sums)
                        piece = Piece(message.number, message.group, message.first, content)
                        inbox.put(each.arrives, piece, size)
                case Ended():
                    if self._book.end(message.number):
                        inbox.put(each.arrives, Over(message.number, message.error))
                case _:
                    raise AssertionError(f"a {type(message).__name__} is sent by nobody here")

    def close(self) -> None:
        """There is no connection."""
