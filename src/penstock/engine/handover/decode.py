"""The engine that lets others compute its prompts, and goes on from there."""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.cache.changes import CacheChanges
from penstock.cache.geometry import first_seen_block
from penstock.cache.prefix import Key, chain_keys
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.handover.around import Arrivals, Chain, SteppedCore
from penstock.engine.handover.peer import Over, Piece
from penstock.engine.handover.rule import FIRST_RATE, LEAST_TOKENS, Costs, Load, Measured
from penstock.engine.handover.wire import PIECE_BYTES, Ask
from penstock.errors import RequestError
from penstock.handover_config import DecodeRole
from penstock.interface.blocks import DamagedBlockError
from penstock.interface.messages import (
    EngineRequest,
    EngineStats,
    FinishReason,
    HandoverStats,
    SequenceUpdate,
)
from penstock.peers.address import Address

INBOX_BYTES: Final = 256 << 20
"""Most bytes of blocks that wait to be put into the cache."""
STEP_BYTES: Final = PIECE_BYTES
"""About as many bytes are put into the cache between two steps, which takes 1 to 2 ms."""

_log = logging.getLogger("penstock.handover")


class Prefiller(Protocol):
    """A prefill engine to ask, as :class:`penstock.engine.handover.peer.Peer` is."""

    @property
    def address(self) -> Address: ...

    @property
    def connected(self) -> bool: ...

    @property
    def bandwidth(self) -> float: ...

    @property
    def load(self) -> Load: ...

    @property
    def received_bytes(self) -> int: ...

    def ask(self, ask: Ask, blocks: int) -> bool: ...

    def cancel(self, number: int) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, eq=False)
class _Held:
    """A request whose prompt is computed elsewhere."""

    request: EngineRequest
    number: int
    peer: Prefiller
    keys: list[Key]


class DecodeCore:
    """Drives an engine's core, and holds requests back while others compute their prompts.

    Blocks that have come are put into the cache between steps, about :data:`STEP_BYTES` of them at
    a time. A request goes on when its handover is over, however that ended: what is missing is
    computed here.
    """

    def __init__(
        self,
        core: SteppedCore,
        blocks: CachedBlocks,
        role: DecodeRole,
        inbox: Arrivals[Piece | Over],
        peers: Sequence[Prefiller],
        now: Callable[[], float] = time.perf_counter,
        chain: Chain = chain_keys,
    ) -> None:
        """``now``: the clock by which steps are measured. ``chain``: makes the keys of blocks."""
        self._now = now
        self._chain = chain
        self._core = core
        self._blocks = blocks
        self._role = role
        self._inbox = inbox
        self._peers = peers
        self._held: dict[int, _Held] = {}
        self._by_id: dict[str, _Held] = {}
        self._due: list[SequenceUpdate] = []
        """What the next step returns, besides what comes of it."""
        self._rate = Measured(FIRST_RATE)
        self._count = 0
        self._completed = self._failed = self._declined = 0
        self._tokens = self._recomputed = 0

    @property
    def has_work(self) -> bool:
        return self._core.has_work or bool(self._inbox) or bool(self._due)

    @property
    def tokens_computed(self) -> int:
        return self._core.tokens_computed

    def add_request(self, request: EngineRequest) -> None:
        self._core.check(request)
        if request.request_id in self._by_id or self._core.holds(request.request_id):
            raise RequestError(f"request id {request.request_id!r} is in use", "request_id")
        if not self._hand_over(request):
            self._core.add_request(request)

    def abort(self, request_ids: Iterable[str], index: int | None = None) -> list[SequenceUpdate]:
        updates: list[SequenceUpdate] = []
        others: list[str] = []
        for request_id in request_ids:
            held = self._by_id.get(request_id)
            if held is None:
                others.append(request_id)
            elif index is None:
                self._forget(held)
                held.peer.cancel(held.number)
                updates += _ended(held.request, FinishReason.ABORT)
        return updates + self._core.abort(others, index)

    def step(self) -> list[SequenceUpdate]:
        updates, self._due = self._due, []
        for item in self._inbox.take(STEP_BYTES):
            held = self._held.get(item.number)
            if held is None:
                continue  # it was given up
            if isinstance(item, Over):
                updates += self._go_on(held, item.error)
            elif error := self._put(held, item):
                held.peer.cancel(held.number)
                updates += self._go_on(held, error)
        if not self._core.has_work:
            return updates
        before, began = self._core.tokens_computed, self._now()
        updates += self._core.step()
        computed = self._core.tokens_computed - before
        if computed >= LEAST_TOKENS:
            self._rate.add(computed, self._now() - began)
        return updates

    def stats(self) -> EngineStats:
        stats = self._core.stats()
        handover = HandoverStats(
            role="decode",
            peers=sum(peer.connected for peer in self._peers),
            open=len(self._held),
            completed=self._completed,
            failed=self._failed,
            declined=self._declined,
            bytes=sum(peer.received_bytes for peer in self._peers),
            tokens=self._tokens,
            recomputed_tokens=self._recomputed,
        )
        return handover.added_to(stats)

    def cache_changes(self, position: int | None) -> CacheChanges:
        return self._core.cache_changes(position)

    def reset_prefix_cache(self) -> None:
        self._core.reset_prefix_cache()
        for held in list(self._held.values()):  # their blocks were computed before
            held.peer.cancel(held.number)
            self._due += self._go_on(held, "the prefix cache was reset")

    def load_adapter(self, path: str) -> str:
        return self._core.load_adapter(path)

    def drop_adapter(self, digest: str) -> None:
        self._core.drop_adapter(digest)

    def check_integrity(self) -> None:
        self._core.check_integrity()
        assert set(self._by_id.values()) == set(self._held.values())

    def close(self) -> None:
        self._inbox.close()
        for peer in self._peers:
            peer.close()
        self._core.close()

    def _hand_over(self, request: EngineRequest) -> bool:
        """Ask a prefill engine for the prompt's blocks, if that is worth it."""
        size, windows = self._blocks.block_size, self._blocks.windows
        count = (len(request.prompt_token_ids) - 1) // size
        if not count or request.pooling is not None or request.params.prompt_logprobs is not None:
            return False  # the rows of all tokens may be wanted
        tokens = array("i", request.prompt_token_ids)
        keys = self._chain(request.cache_salt, tokens, count, size)
        starts = [0 if w is None else first_seen_block(w, count * size) for w in windows]
        found = [
            start + self._blocks.num_found(keys[start:], group)
            for group, start in enumerate(starts)
        ]
        missing = [count - each for each in found]
        whole = [each for each, window in zip(found, windows, strict=True) if window is None]
        first = min([*whole, count - 1])
        if not any(missing):
            return False
        peer = self._peer_for(max(missing) * size)
        # What others have handed over is to stay until they run.
        coming = sum(len(held.keys) for held in self._held.values()) * len(windows)
        if peer is None or sum(missing) > self._room - coming:
            self._declined += 1
            return False
        self._count += 1
        ask = Ask(
            number=self._count,
            token_ids=tokens[: count * size].tobytes(),
            first=first,
            salt=request.cache_salt,
            priority=request.priority,
            tenant=request.tenant,
        )
        if not peer.ask(ask, count):
            self._declined += 1
            return False
        held = _Held(request, self._count, peer, keys)
        self._held[held.number] = self._by_id[request.request_id] = held
        return True

    def _peer_for(self, tokens: int) -> Prefiller | None:
        """The prefill engine that computes so many tokens first, if that is worth it."""
        connected = [(peer.load, peer) for peer in self._peers if peer.connected]
        if not connected:
            return None
        # One that has computed nothing so far is not to get all that comes meanwhile.
        guess = max(load.rate for load, _ in connected) or FIRST_RATE
        load, peer = min(connected, key=lambda each: each[0].wait_s(tokens, guess))
        least = self._role.least_tokens
        if least is None:
            least = self._costs(load, peer).least_tokens
        if least is None or tokens < least or load.wait_s(tokens) > self._role.max_wait_s:
            return None
        return peer

    def _costs(self, load: Load, peer: Prefiller) -> Costs:
        rate = self._rate.value
        if not self._rate.known and load.rate:
            rate = load.rate  # the best guess there is
        sizes = zip(self._blocks.group_bytes, self._blocks.windows, strict=True)
        whole = sum(size for size, window in sizes if window is None)
        return Costs(whole / self._blocks.block_size, peer.bandwidth, rate)

    @property
    def _room(self) -> int:
        """Blocks that can be taken, without those that running sequences will want soon."""
        return self._blocks.num_free - self._core.num_running * len(self._blocks.windows)

    def _put(self, held: _Held, piece: Piece) -> str:
        """Put blocks into the cache; returns why the handover has failed, if it has."""
        end = piece.first + len(piece.content.checksums)
        if end - piece.first > self._room:
            return "there is no room in the KV cache"
        try:
            self._blocks.write(held.keys[piece.first : end], piece.group, piece.content)
        except (DamagedBlockError, ValueError) as error:
            return str(error)
        self._blocks.renew(held.keys[:end], piece.group)
        return ""

    def _go_on(self, held: _Held, error: str) -> list[SequenceUpdate]:
        """Schedule a request whose handover is over."""
        self._forget(held)
        request, size = held.request, self._blocks.block_size
        if error:
            self._failed += 1
            _log.warning(
                "the prompt of a request was not handed over by %s: %s; it is computed here",
                held.peer.address,
                error,
            )
        else:
            self._completed += 1
        whole = [g for g, window in enumerate(self._blocks.windows) if window is None]
        found = min([self._blocks.num_found(held.keys, g) for g in whole], default=len(held.keys))
        self._tokens += found * size
        self._recomputed += (len(held.keys) - found) * size
        try:
            self._core.add_request(request)
        except RequestError as refused:  # it was checked before, so this does not happen
            updates = _ended(request, FinishReason.ERROR)
            for update in updates:
                update.error, update.refused = str(refused), True
            return updates
        return []

    def _forget(self, held: _Held) -> None:
        del self._held[held.number]
        del self._by_id[held.request.request_id]


def _ended(request: EngineRequest, reason: FinishReason) -> list[SequenceUpdate]:
    return [
        SequenceUpdate(request.request_id, index, [], finish_reason=reason)
        for index in range(request.params.n)
    ]
