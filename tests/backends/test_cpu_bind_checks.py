"""What an executor is built from: sizes, handles and shapes that cannot be are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
from support.native_executor import (
    ARENA,
    CACHE,
    TOKENS,
    make,
)
from support.tiny_plans import dummy_weights, make_spec

from penstock.backends.cpu.bind import bind
from penstock.errors import ConfigError
from penstock.interface.executor import Limits
from penstock.plan.lower import lower

HUGE = 2**63 - 1


# --- the executor and its memory ------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_elem": "int32"},
        CACHE | {"kv_layers": [(1, 514, 0, 0, 0, 0, 0)], "kv_part_bytes": 2**20},
        CACHE | {"kv_layers": [(1, 33, 0, 0, 0, 0, 0)], "kv_part_bytes": 2**20},
        CACHE | {"kv_part_bytes": 2**47, "num_blocks": 2**26 - 1},
        {"max_positions": 2**31 - 1},
        {"threads": -1},
        {"num_blocks": 2**26},
        {"vocabulary": -1},
    ],
    ids=str,
)
def test_a_shape_that_cannot_be_is_refused(one_module: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        make(one_module, **changes)


@pytest.mark.parametrize("size", [2**64 - 1, 2**64 - 2**21, 2**63, 2**63 - 1])
def test_memory_that_no_machine_has(one_module: Any, executor: Any, size: int) -> None:
    with pytest.raises(MemoryError):
        executor.reserve_constant(size)
    with pytest.raises(MemoryError):
        make(one_module, arena_bytes=size)
    assert executor.region_bytes == []


@pytest.mark.parametrize(
    ("blocks", "tokens", "named"),
    [(10**6, 8, "kv_cache_bytes"), (1, 10**6, "max_num_batched_tokens or max_num_seqs")],
)
def test_a_shortage_names_what_takes_most(blocks: int, tokens: int, named: str) -> None:
    def refuse(**bounds: Any) -> NoReturn:
        raise MemoryError

    plan = lower(make_spec(), "float32")
    limits = Limits(blocks, max_tokens=tokens, max_logit_rows=1, max_sequences=1, threads=1)
    module: Any = SimpleNamespace(Executor=refuse)
    with pytest.raises(ConfigError, match=f"activations; lower {named}$"):
        bind(plan, dummy_weights(make_spec(), 0, "float32"), limits, module)


@pytest.mark.parametrize(
    ("offset", "elem", "cols", "row_bytes"),
    [
        (2**64 - 64, "float32", 8, 64),  # offset + rows wraps to 192
        (0, "float32", 2**62 + 1, 64),  # cols * 4 wraps to 4
        (0, "float32", 8, 2**62),  # rows * row_bytes wraps to 0
        (0, "bfloat16", 2**62, 2**63),
        (ARENA, "float32", 8, 64),
        (ARENA - 3 * 64, "float32", 8, 64),
        (0, "float32", 8, 28),
        (0, "float32", 8, 66),
        (32, "float32", 8, 64),
        (0, "float32", 0, 64),
        (0, "float32", -1, 64),
    ],
)
def test_a_buffer_lies_in_the_arena(
    executor: Any, offset: int, elem: str, cols: int, row_bytes: int
) -> None:
    with pytest.raises(ValueError, match="outside the arena"):
        executor.add_buffer(offset, elem, cols, row_bytes, "T")
    assert executor.add_buffer(ARENA - TOKENS * 64, "float32", 8, 64, "T") == 0


def test_a_part_lies_in_its_constant(executor: Any) -> None:
    constant = executor.reserve_constant(16)
    for offset in (1, 17, 2**64 - 1):
        with pytest.raises(ValueError, match="outside its constant"):
            executor.fill_constant(constant, offset, np.zeros(16, np.uint8))
    for handle in (-1, 1, 2**31 - 1):
        with pytest.raises(ValueError, match="no such constant"):
            executor.fill_constant(handle, 0, np.zeros(16, np.uint8))


# --- matrices ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "k"), [(0, 8), (8, 0), (-1, 8), (8, -1), (HUGE, 2), (2, HUGE), (2**31, 8), (8, 2**31)]
)
def test_a_matrix_has_rows_and_columns_that_fit(executor: Any, n: int, k: int) -> None:
    with pytest.raises(ValueError, match=r"matri"):
        executor.add_matrix("float32", n, k, True)
    with pytest.raises(ValueError, match=r"matri"):
        executor.add_grid_matrix(bits=8, n=n, k=k, gated=True, weight_only=False)
    with pytest.raises(ValueError, match=r"matri"):
        executor.add_int_matrix(
            bits=4, group=32, n=n, k=k, gated=True, zero_points=False, weight_only=False
        )


def test_groups_that_no_sum_holds(executor: Any) -> None:
    def add(group: int, k: int, zero_points: bool) -> Any:
        return executor.add_int_matrix(
            bits=8, group=group, n=16, k=k, gated=False, zero_points=zero_points, weight_only=False
        )

    for group in (-32, 33, 2**62, 2**18):
        with pytest.raises(ValueError, match="groups of a multiple of 32"):
            add(group, 64, False)
    # 255 * 127 * k exceeds 32 bits, whether one group is the row or longer than the row.
    for group in (0, 2**17):
        with pytest.raises(ValueError, match="1 to 65536 columns"):
            add(group, 70_000, True)


@pytest.mark.parametrize(("first", "count"), [(1, HUGE), (HUGE, 1), (-1, 2), (0, 0), (3, 2)])
def test_a_part_lies_in_its_matrix(executor: Any, first: int, count: int) -> None:
    matrix = executor.add_matrix("float32", 4, 8, False)
    rows = np.zeros(max(0, min(count, 2)) * 32, np.uint8)
    with pytest.raises(ValueError, match=r"part"):
        executor.pack_rows(matrix, first, count, rows)


def test_rounding_in_groups_that_cannot_be(executor: Any) -> None:
    codes, scales = np.empty((2, 8), np.int8), np.empty((2, 1), np.float32)
    for bits, group in ((8, HUGE), (8, -1), (5, 0)):
        with pytest.raises(ValueError, match="differ in shape"):
            executor.round_rows("float32", np.zeros(64, np.uint8), bits, group, codes, scales, None)


def test_regions_lie_in_files_and_have_chunks(executor: Any, tmp_path: Any) -> None:
    executor.reserve_constant(100)
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(100)))
    with path.open("rb") as file:
        for region, offset in ((0, HUGE), (0, HUGE - 50), (0, -1), (1, 0), (-1, 0)):
            with pytest.raises(ValueError, match="region"):
                executor.read_regions(file.fileno(), [(region, offset)], 64)
        with pytest.raises(ValueError, match="chunk"):
            executor.read_regions(file.fileno(), [(0, 0)], 0)
        # A chunk larger than anything is one chunk, not none.
        whole = executor.read_regions(file.fileno(), [(0, 0)], 2**64 - 1)
        assert whole == executor.read_regions(file.fileno(), [(0, 0)], 100)
        assert len(whole[0]) == 1
