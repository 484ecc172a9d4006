"""The native attention kernel run over a cache that NumPy wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import BLOCK_SIZE
from support.attention_parts import Part
from support.draft_trees import parents_of, positions_of
from support.native_cache import F32, Cache, Shape


@dataclass(frozen=True)
class Scores:
    """What becomes of scores before and in their softmax, where a model has it."""

    softcap: float = 0.0
    slopes: F32 | None = None  # [heads]
    sinks: F32 | None = None  # [heads]


PLAIN = Scores()


def attend(
    module: Any,
    shape: Shape,
    parts: Sequence[Part],
    threads: int = 1,
    seed: int = 0,
    layers: int = 1,
    bf16_activations: bool = False,
    scores: Scores = PLAIN,
) -> list[F32]:
    """Run one step; the output rows ``[queries, heads, D]`` of each part, of latents their values'.

    Rows of a :class:`draft_trees.Tree` branch; those of any other part do not.
    """
    rng = np.random.default_rng(seed)
    counts = [-(-p.end // BLOCK_SIZE) for p in parts]
    free = rng.permutation(np.arange(1, sum(counts) + 1, dtype=np.int32))  # block 0 stays NaN
    cache = Cache(shape, sum(counts) + 1)
    tables: list[NDArray[np.int32]] = []
    slots: list[NDArray[np.int32]] = []
    for part, count in zip(parts, counts, strict=True):
        table, free = free[:count].copy(), free[count:]
        first = int(shape.seen_from(part.start))
        table[: first // BLOCK_SIZE] = 0  # blocks behind the window belong to others by now
        seen = np.arange(first, part.end, dtype=np.int32)
        owned = table[seen // BLOCK_SIZE] * BLOCK_SIZE + seen % BLOCK_SIZE
        cache.write(owned, part.sequence.k[first : part.end], part.sequence.v[first : part.end])
        slots.append(owned[part.start - first :])
        tables.append(table)
    q = np.concatenate([p.sequence.q[p.start : p.end] for p in parts])
    flat = np.ascontiguousarray(q.reshape(len(q), -1))
    if bf16_activations:
        flat = flat.astype(ml_dtypes.bfloat16).view(np.uint16)
    out = np.full(
        (len(q), shape.heads * shape.out_dim),
        -1 if flat.dtype == np.float32 else 0xFFFF,
        flat.dtype,
    )
    module.attention(
        flat,
        out,
        cache.bytes,
        shape.element,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        scale=shape.head_dim**-0.5,
        window=shape.window,
        chunk=shape.chunk,
        positions=np.concatenate([positions_of(p) for p in parts]),
        tree_parents=parents_of(parts),
        slots=np.concatenate(slots),
        query_starts=np.cumsum([0, *(p.end - p.start for p in parts)], dtype=np.int32),
        context_lens=np.array([p.end for p in parts], np.int32),
        block_starts=np.cumsum([0, *counts], dtype=np.int32),
        block_ids=np.concatenate(tables),
        threads=threads,
        layers=layers,
        softcap=scores.softcap,
        slopes=scores.slopes,
        sinks=scores.sinks,
        value_dim=shape.value_dim,
    )
    if bf16_activations:
        out = out.view(ml_dtypes.bfloat16).astype(np.float32)
    rows = out.reshape(len(q), shape.heads, shape.out_dim)
    return np.split(rows, np.cumsum([p.end - p.start for p in parts])[:-1])
