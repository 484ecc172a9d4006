"""Heads of all sizes that models have, natively: rotated in every way, with caps and scales."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.kv_tables import in_groups
from support.needs import needs_native
from support.rare_plans import PlanWeights
from support.tiny_plans import Chunk, make_spec, step_of, tokens_of

from penstock.backends.cpu import native
from penstock.backends.cpu.bind import bind
from penstock.backends.reference.executor import ReferenceExecutor
from penstock.cache.geometry import KvDType
from penstock.interface.executor import Limits
from penstock.models.spec import RopeSpec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower

pytestmark = needs_native

LIMITS = Limits(num_blocks=12, max_tokens=64, max_logit_rows=64, max_sequences=4, threads=2)
TOKENS = tokens_of(1, 90)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("isa", native.runnable())
@pytest.mark.parametrize("dim", [2, 8, 48, 80, 96, 128, 256, 512])
@pytest.mark.parametrize("kv", ["float32", "bfloat16", "int8"])
def test_heads_of_all_sizes(isa: str, dim: int, kv: KvDType) -> None:
    """Whole heads and parts of them are rotated, as halves and as neighbours."""
    part = dim // 4 * 2 or 2
    spec = make_spec(dim=dim, heads=(4, 2), rope_dim=dim, qk_norm=True)
    layer = spec.layers[0]
    attentions = [
        replace(
            layer.attention,
            rope=None if turned is None else RopeSpec(1e4, turned, interleaved=interleaved),
            softcap=cap,
            window=window,
        )
        for turned, interleaved, cap, window in (
            (dim, False, None, None),
            (part, False, 3.0, None),
            (dim, True, None, 33),
            (part, True, 3.0, 33),
            (None, False, 3.0, None),
        )
    ]
    spec = replace(spec, layers=tuple(replace(layer, mixer=a) for a in attentions))
    primitive = lower(spec, kv_dtype=kv)
    groups = len(primitive.kv_groups)
    limits = replace(LIMITS, num_blocks=groups * 6)
    weights = PlanWeights(primitive)
    executors: list[Any] = [
        ReferenceExecutor(primitive, weights, limits),
        bind(primitive, weights, limits, native.load(isa)),
        bind(fuse(primitive), weights, limits, native.load(isa)),
    ]
    for step in (
        step_of([Chunk(TOKENS, 0, 64, [3, 1, 4], rows=[0, 31, 40, 63])]),
        step_of([Chunk(TOKENS, 64, 89, [3, 1, 4])]),
        step_of([Chunk(TOKENS, 89, 90, [3, 1, 4])]),
    ):
        whole = in_groups(step, groups, 6)
        expected, plain, fused = (each.run(whole).logits.copy() for each in executors)
        most = {"float32": 3e-5, "bfloat16": 5e-2, "int8": 1e-1}[kv]
        np.testing.assert_allclose(plain, expected, rtol=0, atol=most)
        np.testing.assert_array_equal(plain.view(np.uint32), fused.view(np.uint32))
    for each in executors:
        each.close()
