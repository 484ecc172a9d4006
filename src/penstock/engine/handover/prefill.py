"""The engine that computes prompts for others."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from penstock.cache.changes import CacheChanges
from penstock.cache.geometry import first_seen_block
from penstock.cache.prefix import Key, chain_keys
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.handover.around import Arrivals, Chain, SteppedCore
from penstock.engine.handover.rule import Measured
from penstock.engine.handover.visitors import Arrival, Gone
from penstock.engine.handover.wire import PIECE_BYTES, Ask, Blocks, Cancel, Ended, FromPrefill
from penstock.errors import RequestError
from penstock.interface.messages import EngineRequest, EngineStats, HandoverStats, SequenceUpdate
from penstock.peers.channel import Payload
from penstock.sampling.params import SamplingParams

_PREFIX = "handover:"
_MOST_OPEN = 4096
_ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


class Visitor(Protocol):
    """A decode engine to send to, as :class:`penstock.engine.handover.visitors.Visitor` is."""

    @property
    def has_room(self) -> bool: ...

    def send(self, message: FromPrefill, *payload: Payload) -> None: ...


V = TypeVar("V", bound=Visitor)
V_co = TypeVar("V_co", bound=Visitor, covariant=True)


class Visitors(Protocol[V_co]):
    """Those that are connected, as :class:`penstock.engine.handover.visitors.Visitors` has
    them."""

    @property
    def inbox(self) -> Arrivals[tuple[V_co, Arrival]]: ...

    def __len__(self) -> int: ...

    def tell(self, queued_tokens: int, tokens_per_s: float) -> None: ...

    def close(self) -> None: ...


@dataclass(eq=False)
class _Export(Generic[V]):
    """One handover to a decode engine."""

    visitor: V
    number: int
    request_id: str
    keys: list[Key]
    next: list[int] = field(default_factory=list)
    """The first place that was not sent yet, for each group."""
    runs: bool = False
    """Whether its prompt is computed, or waits for it."""
    error: str = ""

    @property
    def missing(self) -> int:
        """Blocks that were not sent, of the group that lacks most."""
        return len(self.keys) - min(self.next)


class PrefillCore(Generic[V]):
    """Drives an engine's core, and sends the blocks of prompts that others ask for.

    Each of these is a request for one token that nobody reads. After a step the blocks that it
    filled are found by their keys, as a request with the same prompt would find them, and copied
    before the next step could reuse them. Where a decode engine takes them more slowly than they
    come, so that copies fill its part of memory, they stay in the cache, and may be gone when there
    is room; it then gets those before.
    """

    def __init__(
        self,
        core: SteppedCore,
        blocks: CachedBlocks,
        visitors: Visitors[V],
        now: Callable[[], float] = time.perf_counter,
        chain: Chain = chain_keys,
    ) -> None:
        """``now``: the clock by which steps are measured. ``chain``: makes the keys of blocks."""
        self._now = now
        self._chain = chain
        self._core = core
        self._blocks = blocks
        self._visitors = visitors
        self._exports: dict[tuple[V, int], _Export[V]] = {}
        self._by_id: dict[str, _Export[V]] = {}
        self._rate = Measured(0.0)
        self._count = 0
        self._completed = self._failed = self._sent_bytes = self._sent_tokens = 0

    @property
    def has_work(self) -> bool:
        return self._core.has_work or bool(self._visitors.inbox) or self._sendable()

    @property
    def tokens_computed(self) -> int:
        return self._core.tokens_computed

    def add_request(self, request: EngineRequest) -> None:
        if request.request_id.startswith(_PREFIX):
            raise RequestError(f"ids that begin with {_PREFIX} are the engine's own", "request_id")
        self._core.add_request(request)

    def abort(self, request_ids: Iterable[str], index: int | None = None) -> list[SequenceUpdate]:
        return self._core.abort(request_ids, index)

    def step(self) -> list[SequenceUpdate]:
        for visitor, message in self._visitors.inbox.take():
            self._handle(visitor, message)
        updates: list[SequenceUpdate] = []
        if self._core.has_work:
            before, began = self._core.tokens_computed, self._now()
            updates = self._core.step()
            computed = self._core.tokens_computed - before
            if computed >= 2 * self._blocks.block_size:
                self._rate.add(computed, self._now() - began)
        if self._exports:
            updates = self._own_taken_out(updates)
            for export in list(self._exports.values()):
                self._send(export)
        self._visitors.tell(
            sum(e.missing for e in self._exports.values()) * self._blocks.block_size,
            self._rate.value,
        )
        return updates

    def stats(self) -> EngineStats:
        stats = HandoverStats(
            role="prefill",
            peers=len(self._visitors),
            open=len(self._exports),
            completed=self._completed,
            failed=self._failed,
            bytes=self._sent_bytes,
            tokens=self._sent_tokens,
        )
        return stats.added_to(self._core.stats())

    def cache_changes(self, position: int | None) -> CacheChanges:
        return self._core.cache_changes(position)

    def reset_prefix_cache(self) -> None:
        self._core.reset_prefix_cache()

    def load_adapter(self, path: str) -> str:
        return self._core.load_adapter(path)

    def drop_adapter(self, digest: str) -> None:
        self._core.drop_adapter(digest)

    def check_integrity(self) -> None:
        self._core.check_integrity()

    def close(self) -> None:
        self._visitors.close()
        self._core.close()

    def _handle(self, visitor: V, message: Arrival) -> None:
        match message:
            case Ask():
                self._begin(visitor, message)
            case Cancel(number=number):
                self._drop(self._exports.get((visitor, number)))
            case Gone.GONE:
                for key in [key for key in self._exports if key[0] is visitor]:
                    self._drop(self._exports[key])

    def _begin(self, visitor: V, ask: Ask) -> None:
        tokens, size = array("i"), self._blocks.block_size
        tokens.frombytes(ask.token_ids)
        count = len(tokens) // size
        self._count += 1
        export = _Export(
            visitor,
            ask.number,
            f"{_PREFIX}{self._count}",
            self._chain(ask.salt, tokens, count, size),
            [
                max(ask.first, 0 if window is None else first_seen_block(window, count * size))
                for window in self._blocks.windows
            ],
        )
        if len(self._exports) >= _MOST_OPEN:
            self._failed += 1
            visitor.send(Ended(ask.number, f"{_MOST_OPEN} handovers are open there"))
            return
        self._exports[visitor, ask.number] = export
        if self._all_there(export):
            self._send(export)
            return
        request = EngineRequest(
            request_id=export.request_id,
            prompt_token_ids=tokens.tolist(),
            params=_ONE_TOKEN,
            cache_salt=ask.salt,
            priority=ask.priority,
            tenant=ask.tenant,
        )
        try:
            self._core.add_request(request)
        except RequestError as error:
            export.error = str(error)
        else:
            export.runs = True
            self._by_id[export.request_id] = export

    def _own_taken_out(self, updates: list[SequenceUpdate]) -> list[SequenceUpdate]:
        """The updates of others' requests; notes which of its own have ended."""
        others = []
        for update in updates:
            export = self._by_id.get(update.request_id)
            if export is None:
                others.append(update)
            elif update.finish_reason is not None:
                export.runs = False
                export.error = update.error or ""
                del self._by_id[update.request_id]
        return others

    def _all_there(self, export: _Export[V]) -> bool:
        return all(
            self._blocks.num_found(export.keys[first:], group) == len(export.keys) - first
            for group, first in enumerate(export.next)
        )

    def _sendable(self) -> bool:
        """Whether something waits to be sent and there is room for it, though no step runs."""
        return any(not e.runs and e.visitor.has_room for e in self._exports.values())

    def _send(self, export: _Export[V]) -> None:
        """Send what has been computed since the last time, as far as there is room."""
        for group, each in enumerate(self._blocks.group_bytes):
            most = max(PIECE_BYTES // each, 1)
            while export.visitor.has_room:
                first = export.next[group]
                wanted = export.keys[first : first + most]
                keys = wanted[: self._blocks.num_found(wanted, group)]
                if not keys:
                    break
                content = self._blocks.read(keys, group)
                sums = tuple(content.checksums.tolist())
                export.visitor.send(
                    Blocks(number=export.number, group=group, first=first, checksums=sums),
                    content.data,
                )
                export.next[group] += len(keys)
                self._sent_bytes += len(content.data)
                if group == 0:
                    self._sent_tokens += len(keys) * self._blocks.block_size
        if export.runs:
            return
        if export.missing and not export.visitor.has_room and self._more_there(export):
            return
        error = export.error
        if export.missing and not error:
            error = "blocks of the prompt were no longer in the cache when there was room to send"
        export.visitor.send(Ended(export.number, error))
        self._completed += not error
        self._failed += bool(error)
        del self._exports[export.visitor, export.number]

    def _more_there(self, export: _Export[V]) -> bool:
        return any(
            first < len(export.keys) and self._blocks.has(export.keys[first], group)
            for group, first in enumerate(export.next)
        )

    def _drop(self, export: _Export[V] | None) -> None:
        if export is None:
            return
        del self._exports[export.visitor, export.number]
        if export.runs:
            del self._by_id[export.request_id]
            self._core.abort([export.request_id])
