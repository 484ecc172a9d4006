"""Ranks that share a plan, each on a device of its own, give bitwise what one device gives.

Here their devices are one, and they take turns (``support/cuda_ranks.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from hypothesis import HealthCheck, assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from support.checkpoints import tiny_checkpoint  # noqa: E402
from support.cuda_ranks import on_ranks  # noqa: E402
from support.drawn_specs import UNEVEN_HEADS, ranks_can_share, specs  # noqa: E402
from support.families import FAMILIES  # noqa: E402
from support.kv_tables import in_groups  # noqa: E402
from support.rank_steps import own_logits  # noqa: E402
from support.tiny_plans import Chunk, make_spec, step_of, tokens_of  # noqa: E402

from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.backends.cuda.executor import CudaExecutor  # noqa: E402
from penstock.backends.cuda.kernels import tiles  # noqa: E402
from penstock.backends.cuda.op_storage import whole_columns  # noqa: E402
from penstock.interface.executor import Limits  # noqa: E402
from penstock.interface.step import StepInput  # noqa: E402
from penstock.interface.weights import WeightSource  # noqa: E402
from penstock.models.spec import ModelSpec  # noqa: E402
from penstock.plan import ops  # noqa: E402
from penstock.plan.fuse import fuse  # noqa: E402
from penstock.plan.lower import lower  # noqa: E402
from penstock.plan.plan import Plan  # noqa: E402
from penstock.plan.ranks import rank_plans  # noqa: E402
from penstock.quant.choice import choose  # noqa: E402
from penstock.weights.checkpoint import open_weights  # noqa: E402
from penstock.weights.dummy import DummyWeights  # noqa: E402
from penstock.weights.model_folder import load_model_spec  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

BLOCKS = 4
LIMITS = Limits(num_blocks=0, max_tokens=12, max_logit_rows=12, max_sequences=2, threads=1)
A, B = tokens_of(1, 8) % 96, tokens_of(2, 4) % 96


def steps(plan: Plan) -> list[StepInput]:
    """A prompt, then a step that decodes it beside another prompt."""
    chosen = [
        [Chunk(A, 0, 7, [3], rows=[2, 6], hidden=[5])],
        [Chunk(B, 0, 3, [1]), Chunk(A, 7, 8, [3])],
    ]
    return [in_groups(step_of(chunks), len(plan.kv_groups), BLOCKS) for chunks in chosen]


def results(executor: CudaExecutor, given: Sequence[StepInput]) -> list[Any]:
    """Logits, hidden states and likeliest tokens of each step."""
    found = []
    for step in given:
        result = executor.run(step)
        found.append((result.logits.copy(), result.hidden.copy(), result.argmax.copy()))
    return found


def check(
    primitive: Plan, weights: Callable[[Plan], WeightSource], world: int, device: Any
) -> None:
    """So many ranks give bitwise what one device gives."""
    whole = fuse(primitive)
    limits = replace(LIMITS, num_blocks=len(whole.kv_groups) * BLOCKS)
    given = steps(whole)
    one = bind(whole, weights(whole), limits, device)
    expected = results(one, given)
    one.close()
    plans = rank_plans(primitive, whole, world)
    ranks = on_ranks(plans, weights, limits, device, lambda executor: results(executor, given))
    for rank, several in enumerate(ranks):
        for (logits, hidden, argmax), wanted in zip(several, expected, strict=True):
            np.testing.assert_array_equal(logits, own_logits(plans[rank], rank, wanted[0]))
            np.testing.assert_array_equal(hidden, wanted[1])
            if rank == 0:
                np.testing.assert_array_equal(argmax, wanted[2])


def dummies(dtype: Any) -> Callable[[Plan], WeightSource]:
    return lambda plan: DummyWeights(plan.weights, 3, dtype)


def small(**options: Any) -> ModelSpec:
    """A tiny model of one layer."""
    spec = make_spec(**options)
    return replace(spec, layers=spec.layers[:1])


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "world", "dtype"),
    [
        ((6, 3), 2, "bfloat16"),  # one rank has two of the KV heads
        pytest.param((4, 2), 3, "float32", marks=SLOW),  # two share one
        pytest.param((9, 3), 3, "bfloat16", marks=SLOW),
        pytest.param((9, 3), 4, "bfloat16", marks=SLOW),
        pytest.param((8, 1), 3, "float16", marks=SLOW),
        pytest.param((66, 1), 2, "float32", marks=SLOW),  # more than other tiles have rows
    ],
)
def test_heads_that_divide_unevenly(
    heads: tuple[int, int], world: int, dtype: Any, device: Any
) -> None:
    spec = small(heads=heads, bias=True, tie=heads != (6, 3))
    check(lower(spec, dtype, half=dtype == "float16"), dummies(dtype), world, device)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "group", "activations", "kv_dtype", "world"),
    [
        ("int4", 32, False, "int8", 2),
        pytest.param("int8", None, True, "bfloat16", 2, marks=SLOW),
        pytest.param("int8", None, False, "fp8", 3, marks=SLOW),
        pytest.param("int4", None, True, "int4", 4, marks=SLOW),
    ],
)
def test_quantized(
    name: Any, group: int | None, activations: bool, kv_dtype: Any, world: int, device: Any
) -> None:
    schemes = choose(name, group, True, activations=activations, window_columns=32)
    spec = small(heads=(8, 4), qk_norm=True)
    plan = lower(spec, "bfloat16", quantization=schemes, kv_dtype=kv_dtype)
    check(plan, dummies("bfloat16"), world, device)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "world"),
    [
        ("qwen2_moe", 2),
        ("gpt_oss", 2),
        ("deepseek_v3", 2),
        ("minicpm3", 3),
    ],
)
def test_families(family: str, world: int, device: Any) -> None:
    """Experts, latents, and ranks' rows of checkpoints."""
    pytest.importorskip("transformers", reason="it makes the models")
    cases = FAMILIES[family].cases
    folder = tiny_checkpoint(family, **next(iter(cases.values())))
    spec = load_model_spec(folder)

    def weights(plan: Plan) -> WeightSource:
        return open_weights(folder, spec, plan.weights, "float32")

    check(lower(spec, "float32", 64), weights, world, device)


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["none", pytest.param("int4", marks=SLOW)])
def test_splits_of_a_shared_product_are_those_of_the_whole(
    quantization: Any, monkeypatch: pytest.MonkeyPatch, device: Any
) -> None:
    """Where a part by itself would be split otherwise, which would change its sums."""
    monkeypatch.setattr(tiles, "PROGRAMS", 2)
    monkeypatch.setattr(tiles, "SHORTEST", 256)
    spec = replace(small(heads=(4, 4)), hidden_size=512, vocab_size=96)
    schemes = choose(quantization, None, True, activations=False, window_columns=32)
    primitive = lower(spec, "float32", quantization=schemes)
    (own, _) = rank_plans(primitive, fuse(primitive), 2)
    products = [op for op in own.ops if isinstance(op, ops.Linear) and op.k >= 512]
    wholes = [whole_columns(op, own) or op.n for op in products]
    assert any(
        tiles.splits_of(op.n, op.k) != tiles.splits_of(n, op.k)
        for op, n in zip(products, wholes, strict=True)
    )
    check(primitive, dummies("float32"), 2, device)


def test_ranks_warm_up_with_the_same_steps(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles choose them, and ranks of uneven parts have others: all run what any of them needs."""
    primitive = lower(small(heads=(6, 3)), "bfloat16")
    plans = rank_plans(primitive, fuse(primitive), 2)
    first, second = (next(op.n for op in p.ops if isinstance(op, ops.Linear)) for p in plans)
    own = {first: (1, 8), second: (12,)}
    assert len(own) == 2

    def warm_rows(matrices: Any, max_rows: int) -> tuple[int, ...]:
        return own[next(each.shape.n for each in matrices if each.shape.n in own)]

    monkeypatch.setattr("penstock.backends.cuda.bind.warm_rows", warm_rows)
    limits = replace(LIMITS, num_blocks=BLOCKS)
    rows = on_ranks(plans, dummies("bfloat16"), limits, device, lambda each: each._warm_rows)
    assert rows == [(1, 8, 12)] * 2


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(spec=specs(heads=UNEVEN_HEADS), world=st.sampled_from([2, 3, 4]))
def test_a_shared_product_knows_the_columns_of_the_whole(spec: ModelSpec, world: int) -> None:
    """Those of the op that one device would run, of which a rank's may be no other part."""
    assume(ranks_can_share(spec, world))
    primitive = lower(spec)
    whole = fuse(primitive)
    for own in rank_plans(primitive, whole, world):
        for op in own.ops:
            if not isinstance(op, ops.Linear | ops.ExpertLinear):
                continue
            shares = [own.weights[part.weight].share for part in op.parts]
            names = [
                part.weight if share is None else share.name
                for part, share in zip(op.parts, shares, strict=True)
            ]
            (same,) = (
                each
                for each in whole.ops
                if isinstance(each, ops.Linear | ops.ExpertLinear)
                and [part.weight for part in each.parts] == names
            )
            assert (whole_columns(op, own) or op.n) == same.n
