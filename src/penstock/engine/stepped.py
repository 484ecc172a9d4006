"""What drives an engine step by step knows of its core."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from penstock.cache.changes import CacheChanges
from penstock.interface.messages import EngineRequest, EngineStats, SequenceUpdate


class Core(Protocol):
    """What the engine's loop drives: :class:`penstock.engine.core.EngineCore`, or that of a role
    around it (``engine/handover/``)."""

    @property
    def has_work(self) -> bool: ...

    @property
    def tokens_computed(self) -> int: ...

    def add_request(self, request: EngineRequest) -> None: ...

    def abort(
        self, request_ids: Iterable[str], index: int | None = None
    ) -> list[SequenceUpdate]: ...

    def step(self) -> list[SequenceUpdate]: ...

    def stats(self) -> EngineStats: ...

    def cache_changes(self, position: int | None) -> CacheChanges: ...

    def reset_prefix_cache(self) -> None: ...

    def load_adapter(self, path: str) -> str:
        """Load an adapter from a folder; return its digest. Raises ConfigError or WeightError."""
        ...

    def drop_adapter(self, digest: str) -> None: ...

    def check_integrity(self) -> None: ...

    def close(self) -> None: ...
