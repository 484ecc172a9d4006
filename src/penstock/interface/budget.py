"""How memory is divided between weights and cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """Bytes of the weights and of the KV cache, and why the cache has that size."""

    weights: int
    kv_cache: int
    why: str
