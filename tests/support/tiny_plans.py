"""Tiny models, and steps over sequences of them, that tests of backends share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.step import KvTables, StepInput
from penstock.models.spec import (
    Activation,
    AttentionSpec,
    DType,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
    QkNormSpec,
    RopeSpec,
)
from penstock.plan.lower import lower
from penstock.weights.dummy import DummyWeights
from support.kv_tables import changed

NORM = NormSpec(eps=1e-5)


def make_spec(
    *,
    qk_norm: bool = False,
    bias: bool = False,
    tie: bool = True,
    window: int | None = None,
    activation: Activation = "silu",
    dim: int = 16,
    rope_dim: int = 16,
    heads: tuple[int, int] = (6, 2),
) -> ModelSpec:
    attention = AttentionSpec(
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=dim,
        rope=RopeSpec(theta=10000.0, dim=rope_dim),
        scale=dim**-0.5,
        window=window,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QkNormSpec(1e-5) if qk_norm else None,
    )
    return ModelSpec(
        architecture="TinyForCausalLM",
        vocab_size=211,
        hidden_size=72,  # neither a multiple of 16 nor of 32
        layers=(LayerSpec(attention, MlpSpec(104, activation, bias), NORM, NORM),) * 2,
        final_norm=NORM,
        tie_embeddings=tie,
        max_positions=512,
        dtype="float32",
    )


def dummy_weights(spec: ModelSpec, seed: int, dtype: DType) -> DummyWeights:
    return DummyWeights(lower(spec).weights, seed, dtype)


@dataclass
class Chunk:
    """Tokens ``start:stop`` of one sequence, run in one step; ``rows`` of them get logits."""

    tokens: NDArray[np.int32]
    start: int
    stop: int
    blocks: Sequence[int]
    rows: Sequence[int] | None = None  # absolute positions; None: the last
    hidden: Sequence[int] = ()  # absolute positions, none of rows


def step_of(chunks: Sequence[Chunk], copies: Sequence[tuple[int, int]] = ()) -> StepInput:
    def ints(values: Any) -> NDArray[np.int32]:
        return np.asarray(values, dtype=np.int32)

    starts = np.cumsum([0] + [c.stop - c.start for c in chunks])
    positions = np.concatenate([np.arange(c.start, c.stop) for c in chunks])
    owned = np.concatenate(
        [[c.blocks[p // BLOCK_SIZE] for p in range(c.start, c.stop)] for c in chunks]
    )
    tables = [c.blocks[: -(-c.stop // BLOCK_SIZE)] for c in chunks]
    rows = [
        starts[i] + p - c.start
        for i, c in enumerate(chunks)
        for p in ([c.stop - 1] if c.rows is None else c.rows)
    ]
    hidden = [starts[i] + p - c.start for i, c in enumerate(chunks) for p in c.hidden]
    return StepInput(
        token_ids=ints(np.concatenate([c.tokens[c.start : c.stop] for c in chunks])),
        positions=ints(positions),
        groups=(
            KvTables(
                ints(owned * BLOCK_SIZE + positions % BLOCK_SIZE),
                ints(np.cumsum([0] + [len(t) for t in tables])),
                ints([b for t in tables for b in t]),
            ),
        ),
        query_starts=ints(starts),
        context_lens=ints([c.stop for c in chunks]),
        logit_rows=ints(rows),
        block_copies=ints(copies).reshape(-1, 2),
        hidden_rows=ints(hidden),
    )


def tokens_of(seed: int, length: int) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, 211, length).astype(np.int32)


def broken(step: StepInput, **changes: Any) -> StepInput:
    arrays: dict[str, Any] = {k: np.asarray(v, np.int32) for k, v in changes.items()}
    return changed(step, **arrays)


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"token_ids": [0, 211]}, "token id 211"),
    ({"token_ids": [0, -99]}, "token id -99"),
    ({"positions": [0, 512]}, "position 512"),
    ({"slots": [0, 40 * 32]}, "slot 1280"),
    ({"block_ids": [40]}, "block id 40"),
    ({"logit_rows": [2]}, "logit row 2"),
    ({"hidden_rows": [2]}, "hidden row 2"),
    ({"block_copies": [[0, 40]]}, "copied block 40"),
    ({"context_lens": [33]}, "do not agree"),
    ({"context_lens": [1]}, "do not agree"),
    ({"query_starts": [0, 1]}, "query_starts"),
    ({"query_starts": [0]}, "length"),
    ({"positions": [0]}, "length"),
    ({"block_starts": [0, 2]}, "block_ids"),
    ({"block_starts": [1, 0]}, "ascend"),
]
"""What :func:`broken` makes of a step of two tokens in block 1, and what the error says; there are
211 tokens, 512 positions and 40 blocks."""
