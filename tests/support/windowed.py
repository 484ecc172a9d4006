"""Models of layers with windows and of several sizes, and sequences run through their caches."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.cache.block_table import BlockTable
from penstock.cache.geometry import BLOCK_SIZE, KvDType
from penstock.cache.kv_cache import BlockCopy, KvCache
from penstock.interface.step import StepInput
from penstock.interface.step_builder import build_step
from penstock.models.spec import DType, LayerSpec, ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.kv_groups import KvGroup, KvGroups, KvPlace
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from support.tiny_plans import make_spec, tokens_of

Tokens = Sequence[int] | NDArray[np.int32]

NUM_BLOCKS = 60
A, B = tokens_of(1, 300), tokens_of(2, 120)


def spec_of(*kinds: tuple[int, int, int | None]) -> ModelSpec:
    """Layers of (KV heads, head size, window)."""
    spec = make_spec(bias=True)
    base = spec.layers[0]

    def layer(kv_heads: int, dim: int, window: int | None) -> LayerSpec:
        assert base.attention.rope is not None
        rope = replace(base.attention.rope, dim=dim)
        attention = replace(
            base.attention, num_kv_heads=kv_heads, head_dim=dim, window=window, rope=rope
        )
        return replace(base, mixer=attention)

    return replace(spec, layers=tuple(layer(*kind) for kind in kinds))


ALIKE = spec_of((2, 16, None), (2, 16, 40), (2, 16, 40), (2, 16, 9))
HEADS = spec_of((1, 16, None), (2, 16, 40), (1, 16, None), (2, 16, 40))
SIZES = spec_of((1, 32, None), (2, 16, 40), (1, 48, None), (3, 16, 40))


def plan_of(spec: ModelSpec, dtype: DType = "float32", kv: KvDType | None = None) -> Plan:
    return fuse(lower(spec, dtype, 512, kv_dtype=kv))


class Driver:
    """Sequences over an executor, with the books of a cache of the plan's groups."""

    def __init__(self, plan: Plan, executor: Any) -> None:
        self.executor = executor
        self.cache = KvCache(NUM_BLOCKS, BLOCK_SIZE, windows=plan.kv_groups.windows)
        self.tables: list[BlockTable] = []
        self.copies: list[BlockCopy] = []

    def start(self) -> int:
        table = BlockTable()
        assert self.cache.begin(table, None, 1, 1)
        self.tables.append(table)
        return len(self.tables) - 1

    def fork(self, parent: int) -> int:
        self.tables.append(self.cache.fork(self.tables[parent]))
        return len(self.tables) - 1

    def step(self, *parts: tuple[int, Tokens], **more: Any) -> StepInput:
        """Parts are a sequence and its next tokens, all of which get logits."""
        tables = [self.tables[i] for i, _ in parts]
        starts = [table.num_committed for table in tables]
        for table, start, (_, tokens) in zip(tables, starts, parts, strict=True):
            assert self.cache.extend(table, start, start + len(tokens), self.copies)
        step = build_step(
            [array("i", list(tokens)) for _, tokens in parts],
            starts,
            list(zip(*[table.blocks for table in tables], strict=True)),
            block_copies=self.copies,
            **more,
        )
        self.copies = []
        return step

    def run(self, *parts: tuple[int, Tokens]) -> NDArray[np.float32]:
        step = self.step(*parts)
        logits: NDArray[np.float32] = self.executor.run(step).logits.copy()
        for i, tokens in parts:
            table = self.tables[i]
            end = table.num_committed + len(tokens)
            self.cache.commit(table, array("i", [0] * end), end)
        self.cache.check_integrity()
        return logits


def story(plan: Plan, executor: Any) -> list[NDArray[np.float32]]:
    """Two prompts in parts, a fork that copies blocks, and rows of decode."""
    driver = Driver(plan, executor)
    a, b = driver.start(), driver.start()
    reported = [driver.run((a, A[:50]), (b, B[:10])), driver.run((b, B[10:60]))]
    for first in range(50, 210, 40):
        reported.append(driver.run((a, A[first : first + 40]), (b, B[60:61])))
    c = driver.fork(a)
    reported.append(driver.run((c, [7]), (a, A[210:211]), (b, [9])))
    reported += [driver.run((a, A[i : i + 1]), (c, B[i - 180 : i - 179])) for i in range(211, 250)]
    return reported


def _kept(plan: Plan) -> KvGroups:
    sizes = [layer.block_bytes(plan.kv_dtype) for layer in plan.kv_layers]
    places = tuple(KvPlace(0, i, sum(sizes[:i])) for i in range(len(sizes)))
    return KvGroups((KvGroup(None, tuple(range(len(sizes)))),), sum(sizes), places)


@contextmanager
def one_group() -> Iterator[None]:
    """Plans have one group of all layers, of which no block is given back."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Plan, "kv_groups", property(_kept))
        yield
