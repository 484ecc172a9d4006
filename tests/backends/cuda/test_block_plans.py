"""Whole models with matrices in blocks on the GPU's kernels: equal to the reference within
rounding, to themselves exactly; in as much memory as is reckoned."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.block_models import LOW, MIXED, SMALL, experts_of, plan_of, spec_of, weights_of
from support.blocks import BlockFormats
from support.needs import Need, lacking
from support.tiny_plans import Chunk, step_of, tokens_of

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.backends.cuda.memory import needs  # noqa: E402
from penstock.backends.reference.executor import ReferenceExecutor  # noqa: E402
from penstock.backends.registry import BACKENDS  # noqa: E402
from penstock.interface.executor import Limits  # noqa: E402
from penstock.models.spec import DType, ModelSpec  # noqa: E402
from penstock.plan import ops  # noqa: E402

LIMITS = Limits(num_blocks=8, max_tokens=24, max_logit_rows=24, max_sequences=4, threads=1)
A, B = tokens_of(1, 30), tokens_of(2, 20)
PROMPTS = step_of([Chunk(A, 0, 17, [5, 2]), Chunk(B, 0, 4, [7], rows=[1, 3])])
DECODE = step_of([Chunk(B, 4, 5, [7]), Chunk(A, 17, 18, [5, 2])])


def agree(spec: ModelSpec, formats: BlockFormats, dtype: DType, within: float, device: Any) -> None:
    plan = plan_of(spec, dtype, activations=False)
    assert BACKENDS["cuda"].obstacle(plan) is None
    executor = bind(plan, weights_of(spec, formats), LIMITS, device)
    reference = ReferenceExecutor(plan, weights_of(spec, formats), LIMITS)
    for step in (PROMPTS, DECODE):
        expected, got = reference.run(step).logits, executor.run(step).logits
        assert np.abs(got - expected).max() <= np.abs(expected).max() * within
    executor.close()


@pytest.mark.slow
@pytest.mark.parametrize("formats", [MIXED, SMALL, LOW], ids=["k", "legacy", "low"])
@pytest.mark.parametrize(("dtype", "within"), [("bfloat16", 6e-2), ("float32", 1e-4)])
def test_logits_agree_with_the_reference(
    formats: BlockFormats, dtype: DType, within: float, device: Any
) -> None:
    agree(spec_of(formats), formats, dtype, within, device)


def test_a_table_that_no_product_reads(device: Any) -> None:
    spec = spec_of(SMALL, tie=False)
    agree(replace(spec, layers=spec.layers[:1]), SMALL, "float32", 1e-4, device)


@pytest.mark.slow
def test_experts_agree_with_the_reference(device: Any) -> None:
    agree(experts_of(MIXED), MIXED, "float32", 2e-2, device)


@pytest.mark.slow
def test_company_and_chunks_change_no_bit(device: Any) -> None:
    spec = spec_of(MIXED)
    plan = plan_of(spec, "bfloat16", activations=False)
    executor = bind(plan, weights_of(spec, MIXED), LIMITS, device)
    whole = executor.run(step_of([Chunk(A, 0, 17, [5, 2], rows=range(17))])).logits.copy()
    parts = []
    for first, end in ((0, 1), (1, 12), (12, 17)):
        mine = Chunk(A, first, end, [6, 3], rows=range(first, end))
        parts.append(executor.run(step_of([Chunk(B, 0, 4, [7]), mine])).logits[1:].copy())
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    executor.close()


def tensor_bytes() -> dict[int, int]:
    tensors = [x for x in gc.get_objects() if type(x) is torch.Tensor]
    storages = [x.untyped_storage() for x in tensors]
    return {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}


@pytest.mark.parametrize("tie", [True, False])
def test_what_is_reckoned_is_what_binding_allocates(tie: bool, device: Any) -> None:
    if device.type != "cpu":
        lacking(Need.INTERPRETER, "other tensors of a GPU's process come and go")
    spec = spec_of(MIXED, tie)
    plan = plan_of(spec, "bfloat16", activations=False)
    limits = replace(LIMITS, num_blocks=0)
    need = needs(plan, limits)
    matrices = sum(
        op.scheme.nbytes(op.n * (2 if op.gated else 1), op.k)
        for op in plan.ops
        if isinstance(op, ops.Linear) and op.scheme is not None
    )
    assert matrices <= need.weights <= 1.06 * matrices + (0 if tie else 300 * 256) + 20_000
    gc.collect()
    before = tensor_bytes()
    executor = bind(plan, weights_of(spec, MIXED), limits, device)
    gc.collect()
    kept = sum(size for at, size in tensor_bytes().items() if at not in before)
    pinned = 2 * executor._buffer._pinned.length * 4  # these are in the host's memory
    attention = sum(kernel.scratch_bytes for kernel in executor._attention)
    reckoned = need.total - need.reserve - (kept - pinned)
    assert 0 <= reckoned <= 200 * attention
    executor.close()


def test_activations_that_are_to_be_rounded_are_refused() -> None:
    plan = plan_of(spec_of(MIXED), "bfloat16", activations=True)
    obstacle = BACKENDS["cuda"].obstacle(plan)
    assert obstacle is not None
    assert "leave out --quantize-activations" in str(obstacle)
