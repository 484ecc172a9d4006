"""What is read for sequences, on its way: from the disk into the cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from penstock.cache.prefix import Key
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.tiers.disk import Disk
from penstock.engine.tiers.fetch import Fetch
from penstock.engine.tiers.pacing import Pace
from penstock.interface.blocks import BlockBytes, DamagedBlockError
from penstock.kvstore.workers import Wanted

STAGED_BYTES: Final = 512 << 20
"""Most bytes that are read, or have been, for sequences whose turn has not come."""
AHEAD_BYTES: Final = 32 << 20
"""Bytes that the disk is asked for at once while nothing runs: enough that it never waits, and so
few that what has come is put into the cache while a core's own cache has it."""


class Intake:
    """Asks the disk for blocks, and puts them into the cache.

    While sequences run, both go at a :class:`Pace` of which their steps take little notice; while
    none does, or computing would be as good by now, as fast as can be. Blocks are put as far as
    free ones are not wanted by those that run.
    """

    def __init__(
        self,
        blocks: CachedBlocks,
        disk: Disk,
        now: Callable[[], float],
        busy: Callable[[], float] = time.thread_time,
    ) -> None:
        """``busy``: seconds that the calling thread has computed. What others take of its core
        meanwhile is not what putting costs."""
        self._busy = busy
        self._blocks = blocks
        self._disk = disk
        self._now = now
        self._whole = [g for g, window in enumerate(blocks.windows) if window is None]
        self.pace = Pace()
        self.running = 0
        """Sequences that run, each of which will want blocks."""
        self.given_up = self.damaged = 0

    def is_free(self, fetch: Fetch, now: float) -> bool:
        """Whether no step has to be regarded in what is done for a sequence."""
        return self.running == 0 or fetch.is_over(now)

    def waits_calmly(self, fetch: Fetch) -> bool:
        """Whether the steps of others come before what is still to be put for a sequence."""
        return not (self.is_free(fetch, self._now()) or fetch.lacks_room)

    def give_up(self, fetch: Fetch) -> None:
        """Wait for nothing more; what has come is of use."""
        fetch.is_short = True
        if not fetch.has_come:
            self._disk.cancel(fetch.number)
            fetch.unasked.clear()
            fetch.unread = fetch.in_flight = 0
            self.given_up += 1

    def let_go(self, fetch: Fetch) -> None:
        """Put no more of what has come."""
        while fetch.staged:
            self._disk.done(fetch.staged.popleft())

    def size(self, wanted: Wanted) -> int:
        """Bytes of blocks."""
        return len(wanted.keys) * self._blocks.group_bytes[wanted.group]

    def ask(self, fetches: Sequence[Fetch], now: float) -> None:
        """Ask the disk for more, those first whose turn has come."""
        ahead = in_flight = 0
        for fetch in fetches:
            own = fetch.in_flight + fetch.staged_bytes
            ahead += own
            in_flight += fetch.in_flight
            is_free = self.is_free(fetch, now)
            pieces = []
            while fetch.unasked and (is_free or self.pace.may_go):
                # One piece at least of each, whatever others cannot put.
                if own and (
                    ahead >= STAGED_BYTES or (self.running == 0 and in_flight >= AHEAD_BYTES)
                ):
                    break
                wanted = fetch.unasked.popleft()
                size = self.size(wanted)
                if not is_free:
                    self.pace.ask(size)
                own += size
                ahead += size
                in_flight += size
                fetch.in_flight += size
                pieces.append(wanted)
            if pieces:
                self._disk.read(fetch.number, pieces)

    def put(self, fetches: Sequence[Fetch], now: float) -> None:
        """Put blocks into the cache that has room for them beside what runs, and beside what was
        put there before for the ``fetches``, of which those come first whose turn has come: these
        may take what was put for others behind them."""
        room = self._blocks.num_free - self.running * len(self._blocks.windows)
        later = sum(fetch.adopted for fetch in fetches)
        for fetch in fetches:
            later -= fetch.adopted
            room -= fetch.adopted
            has_turn = fetch.turn_at is not None
            is_free = self.is_free(fetch, now)
            if fetch.staged and (is_free or self.pace.may_go):
                self._renew(fetch)
            while fetch.staged and (is_free or self.pace.may_go):
                lacks_room = fetch.staged[0].found > room - (0 if has_turn else later)
                fetch.lacks_room = lacks_room and has_turn
                if lacks_room:
                    break
                began = self._busy()
                room -= self._put_piece(fetch)
                if not is_free:
                    self.pace.spend(self._busy() - began)

    def put_all(self, fetch: Fetch) -> None:
        self._renew(fetch)
        while fetch.staged:
            self._put_piece(fetch)

    def _renew(self, fetch: Fetch) -> None:
        """Let what the sequence will find stay longest in the cache."""
        for group in range(len(self._blocks.windows)):
            self._blocks.renew(fetch.keys, group)

    def _put_piece(self, fetch: Fetch) -> int:
        """Put the blocks into the cache that have come first; returns how many those are."""
        piece = fetch.staged.popleft()
        wanted, count = piece.wanted, piece.found
        keys = list(wanted.keys[:count])
        try:
            self._blocks.write(keys, wanted.group, piece.content)
        except DamagedBlockError:
            count = self._put_whole_ones(keys, wanted.group, piece.content)
            self.give_up(fetch)  # what is behind it would not be found
            self.let_go(fetch)
        self._disk.done(piece)
        fetch.adopted += count
        if self._whole and wanted.group == self._whole[0]:
            fetch.restored += count
        return count

    def _put_whole_ones(self, keys: list[Key], group: int, content: BlockBytes) -> int:
        """Put blocks into the cache up to the first that is damaged, which is removed from the
        disk; returns how many."""
        each = self._blocks.group_bytes[group]
        for i, key in enumerate(keys):
            data = content.data[i * each : (i + 1) * each]
            try:
                self._blocks.write([key], group, BlockBytes(data, content.checksums[i : i + 1]))
            except DamagedBlockError:
                self.damaged += 1
                self._disk.drop([key], group)
                return i
        return len(keys)
