"""How memory is divided between weights and cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """Bytes of the two largest parts, and why the cache has so many."""

    weights: int
    kv_cache: int
    why: str
