"""What is read for sequences, on its way: from the stores below the pool into that."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.cache.prefix import Key
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.tiers.block_store import BlockStore
from penstock.engine.tiers.coming import Coming
from penstock.engine.tiers.fetch import Fetch
from penstock.engine.tiers.pacing import Pace
from penstock.engine.tiers.rule import ReadingCosts
from penstock.errors import EngineDeadError
from penstock.interface.blocks import BlockBytes, BlockContent, BlockCopy, DamagedBlockError
from penstock.kvstore.pieces import Piece, Wanted

STAGED_BYTES: Final = 512 << 20
"""Most bytes that are read, or have been, for sequences whose turn has not come."""
AHEAD_BYTES: Final = 32 << 20
"""Bytes that stores are asked for at once while nothing runs: enough that a disk never waits, and
so few that what has come is put into the cache while a core's own cache has it."""


class _Landing(NamedTuple):
    """A piece that is on its way into the cache's memory."""

    copy: BlockCopy
    piece: Piece
    fetch: Fetch


class Intake:
    """Asks the stores for blocks, and puts them into the cache.

    While sequences run, both go at a :class:`Pace` of which their steps take little notice; while
    none does, or computing would be as good by now, as fast as can be. Blocks are put as long as
    sequences that run are left the free blocks that they will want. Where the cache is a device's,
    blocks *land* beside the steps, whose time they take nothing of; a step that reads some waits.
    """

    def __init__(
        self,
        blocks: CachedBlocks,
        stores: Sequence[BlockStore],
        costs: ReadingCosts,
        coming: Coming,
        now: Callable[[], float],
        busy: Callable[[], float] = time.thread_time,
    ) -> None:
        """``coming`` is told of what is in the cache. ``busy``: seconds that the calling thread
        has computed. What others take of its core meanwhile is not what putting costs."""
        self._busy = busy
        self._blocks = blocks
        self._stores = tuple(stores)
        self._costs = costs
        self._coming = coming
        self._now = now
        self._landing: deque[_Landing] = deque()
        self._whole = [g for g, window in enumerate(blocks.windows) if window is None]
        self.pace = Pace()
        self.running = 0
        """Sequences that run, each of which will want blocks."""
        self.given_up = [0] * len(self._stores)
        """Fetches of which not all came from each store, or not in time."""
        self.damaged = [0] * len(self._stores)

    def is_free(self, fetch: Fetch, now: float) -> bool:
        """Whether no step has to be regarded in what is done for a sequence."""
        return self.running == 0 or fetch.is_over(now)

    def waits_calmly(self, fetch: Fetch) -> bool:
        """Whether the steps of others come before what is still to be put for a sequence, or to
        land."""
        if not fetch.staged and not fetch.landing:
            return False
        if self.is_free(fetch, self._now()):
            return False
        return bool(fetch.landing) or not fetch.lacks_room

    def land(self) -> None:
        """Take note of the pieces that are in the cache's memory by now."""
        while self._landing and self._landing[0].copy.is_done:
            copy, piece, fetch = self._landing.popleft()
            fetch.landing -= 1
            self._coming.is_there(fetch, piece.wanted)
            store = piece.wanted.store
            if not piece.seconds:  # it was there, and came by this copy alone
                self._costs.bandwidths[store].add(piece.num_bytes, copy.seconds)
            self._stores[store].done(piece, copy.seconds)

    def close(self) -> None:
        """Wait for what is landing."""
        for each in self._landing:
            with contextlib.suppress(EngineDeadError):  # a device that has failed copies no more
                each.copy.wait()
            self._stores[each.piece.wanted.store].done(each.piece)
        self._landing.clear()

    def give_up(self, fetch: Fetch) -> None:
        """Wait for nothing more; what has come is of use."""
        fetch.is_short = True
        if not fetch.has_come:
            for number, unread in enumerate(fetch.unread):
                if unread:
                    self._stores[number].cancel(fetch.number)
                    self.given_up[number] += 1
            fetch.unasked.clear()
            fetch.unread = [0] * len(self._stores)
            fetch.in_flight = 0
            fetch.behind.clear()

    def let_go(self, fetch: Fetch) -> None:
        """Put no more of what has come."""
        while fetch.staged:
            piece = fetch.staged.popleft()
            self._stores[piece.wanted.store].done(piece)

    def size(self, wanted: Wanted) -> int:
        """Bytes of blocks."""
        return len(wanted.keys) * self._blocks.group_bytes[wanted.group]

    def ask(self, fetches: Sequence[Fetch], now: float) -> None:
        """Ask the stores for more, those first whose turn has come."""
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
                if not is_free and not self._blocks.is_beside:
                    self.pace.ask(size)
                own += size
                ahead += size
                in_flight += size
                fetch.in_flight += size
                pieces.append(wanted)
            for number, store in enumerate(self._stores):
                own_pieces = [each for each in pieces if each.store == number]
                if own_pieces:
                    store.read(fetch.number, own_pieces)

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
            copy = self._blocks.put(keys, wanted.group, piece.content)
        except DamagedBlockError:
            count = self._put_whole_ones(keys, wanted, piece.content)
            self.give_up(fetch)  # what is behind it would not be found
            self.let_go(fetch)
            self._stores[wanted.store].done(piece)
        else:
            fetch.landing += 1
            self._landing.append(_Landing(copy, piece, fetch))
            self.land()
        fetch.adopted += count
        if self._whole and wanted.group == self._whole[0]:
            fetch.restored[wanted.store] += count
        return count

    def _put_whole_ones(self, keys: list[Key], wanted: Wanted, content: BlockContent) -> int:
        """Put blocks into the cache up to the first that is damaged, which is removed from its
        store; returns how many."""
        assert isinstance(content, BlockBytes), "only what has a checksum is known to be damaged"
        group, each = wanted.group, self._blocks.group_bytes[wanted.group]
        for i, key in enumerate(keys):
            data = content.data[i * each : (i + 1) * each]
            try:
                self._blocks.write([key], group, BlockBytes(data, content.checksums[i : i + 1]))
            except DamagedBlockError:
                self.damaged[wanted.store] += 1
                self._stores[wanted.store].drop([key], group)
                return i
        return len(keys)
