"""Whole plans with matrices in blocks run natively: equal to the reference within rounding, to
themselves exactly; a table of embeddings is in memory once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.block_models import LOW, MIXED, SMALL, experts_of, plan_of, spec_of, weights_of
from support.blocks import BlockFormats
from support.needs import needs_native
from support.tiny_plans import Chunk, make_spec, step_of, tokens_of

from penstock.backends.cpu import native
from penstock.backends.cpu.bind import bind
from penstock.backends.cpu.executor import CpuExecutor
from penstock.backends.cpu.weight_bytes import weight_bytes
from penstock.backends.reference.executor import ReferenceExecutor
from penstock.errors import ConfigError
from penstock.interface.executor import Limits
from penstock.interface.step import StepInput
from penstock.interface.weights import PackedRegions, Place
from penstock.models.spec import DType, ModelSpec
from penstock.plan import ops
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.plan.tied import tied_product

pytestmark = needs_native

LIMITS = Limits(num_blocks=40, max_tokens=96, max_logit_rows=96, max_sequences=8, threads=2)


def executor_of(
    spec: ModelSpec, formats: BlockFormats, plan: Plan, isa: str | None = None, threads: int = 2
) -> CpuExecutor:
    limits = replace(LIMITS, threads=threads)
    return bind(plan, weights_of(spec, formats), limits, native.load(isa))


A, B, C = tokens_of(1, 90), tokens_of(2, 70), tokens_of(3, 8)


def mixed_steps() -> Iterator[StepInput]:
    yield step_of([Chunk(A, 0, 60, [7, 0, 39]), Chunk(C, 0, 5, [2], rows=[1, 2, 4])])
    yield step_of([Chunk(A, 60, 61, [7, 0, 39]), Chunk(B, 0, 64, [12, 5, 31], rows=range(64))])
    yield step_of(
        [Chunk(B, 64, 65, [12, 5, 31]), Chunk(A, 61, 62, [7, 0, 39]), Chunk(C, 5, 6, [2])]
    )


@pytest.mark.thinned(5)
@pytest.mark.parametrize("isa", native.runnable())
@pytest.mark.parametrize("activations", [True, False], ids=["int8", "alone"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("formats", [MIXED, SMALL, LOW], ids=["k", "legacy", "low"])
def test_logits_agree_with_the_reference(
    formats: BlockFormats, dtype: DType, activations: bool, isa: str
) -> None:
    spec = spec_of(formats)
    plan = plan_of(spec, dtype, activations)
    assert {op.scheme is not None for op in plan.ops if isinstance(op, ops.Linear)} == {True}
    executor = executor_of(spec, formats, plan, isa)
    reference = ReferenceExecutor(plan, weights_of(spec, formats), LIMITS)
    exact = dtype == "float32" and not activations
    for step in mixed_steps():
        expected, got = reference.run(step).logits, executor.run(step).logits
        size = np.abs(expected).max()
        assert np.abs(got - expected).max() <= size * (1e-4 if exact else 6e-2)
    executor.close()


@pytest.mark.parametrize("isa", native.runnable())
@pytest.mark.parametrize("activations", [True, False], ids=["int8", "alone"])
def test_experts_agree_with_the_reference(activations: bool, isa: str) -> None:
    spec = experts_of(MIXED)
    plan = plan_of(spec, "float32", activations)
    assert any(isinstance(op, ops.ExpertLinear) and op.scheme is not None for op in plan.ops)
    executor = executor_of(spec, MIXED, plan, isa)
    reference = ReferenceExecutor(plan, weights_of(spec, MIXED), LIMITS)
    for step in mixed_steps():
        expected, got = reference.run(step).logits, executor.run(step).logits
        assert np.abs(got - expected).max() <= np.abs(expected).max() * 2e-2
    executor.close()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("isa", native.runnable())
@pytest.mark.parametrize("activations", [True, False], ids=["int8", "alone"])
@pytest.mark.parametrize("formats", [MIXED, SMALL], ids=["k", "legacy"])
def test_company_chunks_and_threads_change_no_bit(
    formats: BlockFormats, activations: bool, isa: str
) -> None:
    spec = spec_of(formats)
    plan = plan_of(spec, "bfloat16", activations)
    whole = executor_of(spec, formats, plan, isa, threads=1)
    alone = whole.run(step_of([Chunk(A, 0, 60, [7, 0, 39], rows=range(60))])).logits.copy()
    for threads, cuts in ((2, (0, 33, 60)), (3, (0, 1, 5, 12, 60))):
        other = executor_of(spec, formats, plan, isa, threads)
        rows: list[np.ndarray] = []
        for i, (first, end) in enumerate(pairwise(cuts)):
            mine = Chunk(A, first, end, [7, 0, 39], rows=range(first, end))
            beside = Chunk(B, 10 * i, 10 * i + 10, [12, 5, 31])
            rows.append(other.run(step_of([beside, mine])).logits[1:].copy())
        assert np.array_equal(np.concatenate(rows), alone)
        other.close()
    whole.close()


def test_the_lookup_reads_the_matrix_of_the_tied_product() -> None:
    tied, own = (lower(spec_of(MIXED, tie)) for tie in (True, False))
    for plan in (tied, own):
        embed = next(op for op in plan.ops if isinstance(op, ops.Embed))
        assert embed.scheme == MIXED.matrix("embed").scheme
        assert (tied_product(plan, embed) is None) == (plan is own)


def test_a_tied_table_is_in_memory_once() -> None:
    tied, own = (plan_of(spec_of(MIXED, tie), "bfloat16") for tie in (True, False))
    executors = [
        executor_of(spec_of(MIXED, tie), MIXED, plan) for tie, plan in ((True, tied), (False, own))
    ]
    for executor, plan in zip(executors, (tied, own), strict=True):
        packed = sum(executor.packed.sizes)
        # Panels are of 16 rows, and a vocabulary of 211 fills 14 of them.
        assert weight_bytes(plan) <= packed <= weight_bytes(plan) * 1.05
        executor.close()
    table = 211 * (256 // 64) * 68
    head = 211 * 212
    assert weight_bytes(own) - weight_bytes(tied) == head
    assert weight_bytes(tied) > table


@dataclass(frozen=True)
class File:
    """Packed weights in a file, region behind region."""

    path: Path
    sizes: Sequence[int]

    def places(self) -> list[Place]:
        starts = np.cumsum([0, *self.sizes])
        return [Place(i, int(start)) for i, start in enumerate(starts[:-1])]

    def write(self, regions: PackedRegions) -> None:
        with self.path.open("wb") as file:
            regions.write(file.fileno(), self.places(), 1 << 16)

    def restore(self, regions: PackedRegions) -> None:
        assert list(regions.sizes) == list(self.sizes)
        with self.path.open("rb") as file:
            regions.read(file.fileno(), self.places(), 1 << 16)


def test_packed_weights_are_restored(tmp_path: Path) -> None:
    spec = spec_of(MIXED)
    plan = plan_of(spec, "bfloat16")
    first = executor_of(spec, MIXED, plan)
    file = File(tmp_path / "packed", first.packed.sizes)
    file.write(first.packed)
    second = bind(plan, file, LIMITS)
    for step in mixed_steps():
        assert np.array_equal(first.run(step).logits.copy(), second.run(step).logits)
    first.close()
    second.close()


def test_widths_of_no_whole_blocks_are_refused() -> None:
    spec = replace(make_spec(), quantized=MIXED)
    with pytest.raises(ConfigError, match="whole blocks"):
        bind(plan_of(spec, "float32"), weights_of(spec_of(MIXED), MIXED), LIMITS)


def test_weights_in_another_format_are_refused() -> None:
    spec = spec_of(MIXED)
    with pytest.raises(ConfigError, match="is in Q4_1, and not in Q4_K"):
        bind(plan_of(spec, "float32"), weights_of(spec, SMALL), LIMITS)
