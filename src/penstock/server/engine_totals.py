"""What the engines of a model have counted together: no counter begins anew with an engine."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, Final, Protocol, TypeVar

import msgspec

from penstock.errors import PenstockError
from penstock.interface.buckets import Buckets
from penstock.interface.messages import DraftStats, EngineStats, HandoverStats, TierStats

_NOW: Final = frozenset(
    {
        *("running", "waiting", "kv_blocks_total", "kv_blocks_used", "kv_blocks_kept"),
        *("kv_block_tokens", "kv_slots_allocated", "kv_slots_filled"),
        *("states_total", "states_used", "role", "peers", "open"),
        *("running_adapters", "waiting_adapters"),
        *("name", "blocks", "pinned_blocks", "unwritten_bytes", "aside"),
    }
)
"""Fields that say how an engine is now; all others count what it has done."""

STATS_TIMEOUT_S: Final = 2.0
"""Seconds that a scrape waits for an engine in a long step before it reports the last known
values."""


class Told(Protocol):
    """What runs engines, one after another: :class:`penstock.server.supervisor.Supervisor`."""

    @property
    def llm(self) -> object:
        """The engine that runs."""
        ...

    async def stats(self) -> EngineStats:
        """Its figures. Raises EngineDeadError."""
        ...


S = TypeVar("S", EngineStats, DraftStats, HandoverStats, TierStats)


class EngineTotals:
    """The figures of the engines of one model, of which one runs at a time."""

    def __init__(self) -> None:
        self._past: EngineStats | None = None
        self._last: EngineStats | None = None
        self._engine: object | None = None
        self.restarts = 0
        """Restarts that were counted by servers of engines that are gone."""
        self.ended_jobs: Counter[str] = Counter()
        """Jobs of their worker processes that ended early, by why."""

    def tell(self, engine: object, stats: EngineStats) -> None:
        """``engine`` has these figures. One that is another than before has taken its place."""
        if engine is not self._engine:
            self.end()
            self._engine = engine
        self._last = stats

    async def ask(self, engines: Told) -> EngineStats | None:
        """The figures of the engine that runs, or those that it told last, where it is in a long
        step; None where it cannot tell."""
        engine = engines.llm
        try:
            async with asyncio.timeout(STATS_TIMEOUT_S):
                self.tell(engine, await engines.stats())
        except TimeoutError:
            pass
        except PenstockError:
            return None
        return self._last if self._engine is engine else None

    def end(self, restarts: int = 0, ended_jobs: Mapping[str, int] | None = None) -> None:
        """The engine is gone, with its server, which had these figures."""
        if self._last is not None:
            self._past = self._last if self._past is None else _sum(self._past, self._last)
        self._last = self._engine = None
        self.restarts += restarts
        self.ended_jobs.update(ended_jobs or {})

    @property
    def known(self) -> EngineStats | None:
        """The figures of all, as far as they were told; None where none were."""
        if self._past is None or self._last is None:
            return self._last or self._past
        return _sum(self._past, self._last)


def _sum(past: S, now: S) -> S:
    """What was counted in both; all else as it is now."""
    changes = {}
    for field in now.__struct_fields__:
        if field not in _NOW:
            changes[field] = _both(getattr(past, field), getattr(now, field))
    return msgspec.structs.replace(now, **changes)


def _both(past: Any, now: Any) -> Any:
    if past is None or now is None:
        return past if now is None else now
    if isinstance(now, Buckets):
        return now.plus(past)
    if isinstance(now, DraftStats | HandoverStats | TierStats):
        return _sum(past, now)
    if isinstance(now, list):
        return [a + b for a, b in zip_longest(past, now, fillvalue=0)]
    return past + now
