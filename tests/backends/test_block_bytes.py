"""Blocks of a KV cache as bytes: what one executor reads, any other goes on from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.convolved import convolved
from support.latents import over_latents
from support.needs import needs_native
from support.tiny_plans import make_spec
from support.windowed import ALIKE, HEADS, NUM_BLOCKS, SIZES, A, Driver

from penstock.backends.cpu import native
from penstock.backends.cpu.bind import bind
from penstock.backends.reference.checksum import crc32c
from penstock.backends.reference.executor import ReferenceExecutor
from penstock.cache.geometry import KvDType
from penstock.interface.blocks import BlockBytes, BlockIO, DamagedBlockError
from penstock.interface.executor import Limits
from penstock.interface.step import StepInput
from penstock.models.spec import DType, ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.weights.dummy import DummyWeights

pytestmark = needs_native
VARIANTS = native.runnable()
LIMITS = Limits(num_blocks=NUM_BLOCKS, max_tokens=64, max_logit_rows=64, max_sequences=4, threads=2)
TOKENS = 100

HEADS_OF_24 = make_spec(dim=24, rope_dim=24)
HEADS_OF_18 = make_spec(dim=18, rope_dim=18)
LATENTS = over_latents(make_spec())
ROWS = convolved(make_spec(bias=True), "cac")
WINDOWED = over_latents(make_spec(), window=40)

CASES: list[tuple[ModelSpec, DType, KvDType]] = [
    *((HEADS_OF_24, "float32", kv) for kv in ("float32", "float16", "int8", "int4", "k8v4", "fp8")),
    (HEADS_OF_24, "bfloat16", "bfloat16"),
    (HEADS_OF_18, "float32", "int8"),
    (HEADS_OF_18, "float32", "fp8"),
    *((LATENTS, "float32", kv) for kv in ("float32", "float16", "int8")),
    (LATENTS, "bfloat16", "bfloat16"),
    (WINDOWED, "float32", "float32"),
    *((ROWS, "float32", kv) for kv in ("float32", "int8")),
    (ROWS, "bfloat16", "bfloat16"),
    (ALIKE, "bfloat16", "bfloat16"),
    (HEADS, "float32", "int8"),
    (SIZES, "float32", "float32"),
]


def named(value: object) -> str:
    if not isinstance(value, ModelSpec):
        return str(value)
    names = {
        id(HEADS_OF_24): "heads of 24",
        id(HEADS_OF_18): "heads of 18",
        id(LATENTS): "latents",
        id(WINDOWED): "windowed latents",
        id(ROWS): "rows",
        id(ALIKE): "windows",
        id(HEADS): "windows and heads",
        id(SIZES): "windows and sizes",
    }
    return names[id(value)]


of_cases = pytest.mark.parametrize(("spec", "dtype", "kv"), CASES, ids=named)


def plan_of(spec: ModelSpec, dtype: DType, kv: KvDType) -> Plan:
    return fuse(lower(spec, dtype, 512, kv_dtype=kv, taken_back=1))


def executor_of(plan: Plan, isa: str | None = None) -> Any:
    weights = DummyWeights(plan.weights, 3, plan.weight_dtype)
    if isa == "reference":
        return ReferenceExecutor(plan, weights, LIMITS)
    return bind(plan, weights, LIMITS, None if isa is None else native.load(isa))


class Written:
    """A sequence of some tokens that one executor has computed, and its next step."""

    def __init__(self, plan: Plan, executor: Any) -> None:
        self._plan = plan
        driver = Driver(plan, executor)
        sequence = driver.start()
        for first in range(0, TOKENS, 50):
            driver.run((sequence, A[first : first + 50]))
        table = driver.tables[sequence]
        self.blocks = [
            list(blocks[forgotten:])
            for blocks, forgotten in zip(table.blocks, table.forgotten, strict=True)
        ]
        self.content = [executor.blocks.read(g, ids) for g, ids in enumerate(self.blocks)]
        self.step: StepInput = driver.step((sequence, A[TOKENS : TOKENS + 1]))

    def put_into(self, executor: Any) -> None:
        for group, (ids, content) in enumerate(zip(self.blocks, self.content, strict=True)):
            executor.blocks.write(group, ids, content)

    def check_kept(self, executor: Any) -> None:
        for group, (ids, content) in enumerate(zip(self.blocks, self.content, strict=True)):
            again = executor.blocks.read(group, ids)
            np.testing.assert_array_equal(again.data, content.data)
            np.testing.assert_array_equal(again.checksums, content.checksums)


def tolerance_of(dtype: DType, kv: KvDType) -> float:
    """How far logits of kernels are off: those of bfloat16 or an fp8 cache multiply in bfloat16."""
    return 0.1 if dtype == "bfloat16" or kv == "fp8" else 2e-3


def logits(executor: Any, step: StepInput) -> NDArray[np.float32]:
    found: NDArray[np.float32] = executor.run(step).logits.copy()
    return found


@of_cases
def test_another_engine_goes_on_from_the_bytes(spec: ModelSpec, dtype: DType, kv: KvDType) -> None:
    plan = plan_of(spec, dtype, kv)
    first, other, reference = (executor_of(plan, isa) for isa in (None, None, "reference"))
    written = Written(plan, first)
    for executor in (other, reference):
        written.put_into(executor)
        written.check_kept(executor)
    assert first.blocks.group_bytes == reference.blocks.group_bytes
    expected = logits(first, written.step)
    np.testing.assert_array_equal(logits(other, written.step), expected)
    tolerance = tolerance_of(dtype, kv)
    actual = logits(reference, written.step)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
    # And that it does read what was written:
    assert np.abs(logits(executor_of(plan), written.step) - expected).max() > 1e-3
    for executor in (first, other, reference):
        executor.close()


@of_cases
def test_the_reference_s_bytes_are_those_of_kernels(
    spec: ModelSpec, dtype: DType, kv: KvDType
) -> None:
    """The layout is said by NumPy alone, and kernels compute from it what NumPy does."""
    plan = plan_of(spec, dtype, kv)
    reference, kernels = executor_of(plan, "reference"), executor_of(plan)
    written = Written(plan, reference)
    written.put_into(kernels)
    written.check_kept(kernels)
    tolerance = tolerance_of(dtype, kv)
    expected, actual = (logits(each, written.step) for each in (reference, kernels))
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
    kernels.close()


@pytest.mark.parametrize("isa", VARIANTS)
@pytest.mark.parametrize("kv", ["bfloat16", "int8", "int4"])
def test_instruction_sets_exchange_blocks(isa: str, kv: KvDType) -> None:
    dtype: DType = "bfloat16" if kv == "bfloat16" else "float32"
    plan = plan_of(HEADS_OF_24, dtype, kv)
    source = executor_of(plan, isa)
    written = Written(plan, source)
    for other in VARIANTS:
        target = executor_of(plan, other)
        written.put_into(target)
        written.check_kept(target)
        target.close()
    source.close()


def small(isa: str | None) -> tuple[BlockIO, Any]:
    plan = plan_of(SIZES, "float32", "float32")
    executor = executor_of(plan, isa)
    return executor.blocks, executor


@pytest.mark.parametrize("isa", [None, "reference"])
def test_blocks_go_where_they_are_told_and_nowhere_else(isa: str | None) -> None:
    blocks, executor = small(isa)
    rng = np.random.default_rng(1)
    for group, size in enumerate(blocks.group_bytes):
        everywhere = list(range(NUM_BLOCKS))
        before = blocks.read(group, everywhere).data.reshape(NUM_BLOCKS, size).copy()
        ids = [7, 3, 59, 0]
        data = rng.normal(size=(4, size // 4)).astype(np.float32).view(np.uint8).reshape(4, size)
        sums = np.array([crc32c(row.tobytes()) for row in data], np.uint32)
        blocks.write(group, ids, BlockBytes(data.reshape(-1), sums))
        before[ids] = data
        after = blocks.read(group, everywhere)
        np.testing.assert_array_equal(after.data.reshape(NUM_BLOCKS, size), before)
        assert [after.checksums[i] for i in ids] == list(sums)
        assert len(blocks.read(group, []).data) == 0
        blocks.write(group, [], BlockBytes(np.empty(0, np.uint8), np.empty(0, np.uint32)))
    executor.close()


@pytest.mark.parametrize("isa", [None, "reference"])
@pytest.mark.parametrize("damaged", [[0], [2], [1, 3]])
def test_damaged_blocks_are_not_written(isa: str | None, damaged: list[int]) -> None:
    blocks, executor = small(isa)
    before = blocks.read(0, [1, 2, 3, 4])
    rows = np.random.default_rng(2).integers(0, 255, (4, blocks.group_bytes[0])).astype(np.uint8)
    sums = np.array([crc32c(row.tobytes()) for row in rows], np.uint32)
    for i in damaged:
        rows[i, 5 * i + 1] ^= 4
    with pytest.raises(DamagedBlockError, match=f"block {damaged[0]} of 4 .* damaged"):
        blocks.write(0, [1, 2, 3, 4], BlockBytes(rows.reshape(-1), sums))
    np.testing.assert_array_equal(blocks.read(0, [1, 2, 3, 4]).data, before.data)
    executor.close()


@pytest.mark.parametrize("isa", [None, "reference"])
def test_what_is_not_there_is_refused(isa: str | None) -> None:
    blocks, executor = small(isa)
    content = blocks.read(0, [1])
    with pytest.raises(ValueError, match="no group 9"):
        blocks.read(9, [1])
    with pytest.raises(ValueError, match="no block 60"):
        blocks.read(0, [60])
    with pytest.raises(ValueError, match="no block -1"):
        blocks.write(0, [-1], content)
    with pytest.raises(ValueError, match="no group -1"):
        blocks.write(-1, [1], content)
    with pytest.raises(ValueError, match=f"2 blocks of group 0 take .* not {len(content.data)}"):
        blocks.write(0, [1, 2], content)
    with pytest.raises(ValueError, match="differ in number"):
        blocks.write(0, [1], content._replace(checksums=np.empty(0, np.uint32)))
    executor.close()


def test_checksums_are_those_of_native_code() -> None:
    content = np.random.default_rng(3).integers(0, 256, 1000).astype(np.uint8)
    assert crc32c(content.tobytes()) == native.load().crc32c(content)  # type: ignore[attr-defined]
    assert crc32c(b"123456789") == 0xE3069283
    part = crc32c(content[:300].tobytes())
    assert crc32c(content[300:].tobytes(), part) == crc32c(content.tobytes())


def test_one_thread_or_several_read_the_same() -> None:
    plan = plan_of(ALIKE, "bfloat16", "bfloat16")
    weights = DummyWeights(plan.weights, 3, plan.weight_dtype)
    several = executor_of(plan)
    written = Written(plan, several)
    for threads in (1, 5):
        alone = bind(plan, weights, replace(LIMITS, threads=threads))
        written.put_into(alone)
        written.check_kept(alone)
        alone.close()
    several.close()
