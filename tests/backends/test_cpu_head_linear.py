"""Products of heads, and heads joined: the bits of a product of each by itself."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from support.native_arrays import as_bytes
from support.native_executor import COLUMNS, Buffers, make
from support.needs import needs_native

pytestmark = [needs_native, pytest.mark.thinned(5)]

F32 = NDArray[np.float32]
TYPES: dict[str, Any] = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
}


def run(executor: Any, features: F32) -> None:
    """A step of one row a sequence, all of them at position 0."""
    tokens = len(features)
    none, pairs = np.empty(0, np.int32), np.empty((0, 2), np.int32)
    zeros = np.zeros(tokens, np.int32)
    starts = np.arange(tokens + 1, dtype=np.int32)
    executor.run(zeros, zeros, starts, zeros + 1, [], none, none, pairs, none, pairs, features)


def executor_for(module: Any, tokens: int, columns: int, threads: int) -> Any:
    return make(
        module,
        threads=threads,
        max_tokens=tokens,
        max_sequences=tokens,
        arena_bytes=tokens * (columns * 4 + 64 * 64),
    )


class Columns:
    """Buffers side by side in an arena of ``tokens`` rows."""

    def __init__(self, executor: Any, tokens: int) -> None:
        self._executor, self._tokens, self._end = executor, tokens, 0

    def add(self, cols: int, elem: str = "float32") -> int:
        row = -(-cols * np.dtype(TYPES[elem]).itemsize // 64) * 64
        at, self._end = self._end, self._end + row * self._tokens
        return int(self._executor.add_buffer(at, elem, cols, row, "T"))


def pack(executor: Any, dtype: str, matrices: F32) -> int:
    """Matrices ``[heads, n, k]``, each from the beginning of a panel on."""
    heads, n, k = matrices.shape
    rows = -(-n // 16) * 16
    matrix = executor.add_matrix(dtype, heads * rows, k, False)
    for h, one in enumerate(matrices):
        executor.pack_rows(matrix, h * rows, n, as_bytes(one.astype(TYPES[dtype])))
    return int(matrix)


def product(
    module: Any, dtype: str, element: str, matrices: F32, x: F32, threads: int, out: str = "float32"
) -> F32:
    """``x`` ``[rows, heads * k]`` in ``element`` times each head's matrix."""
    heads, n, k = matrices.shape
    executor = executor_for(module, len(x), 3 * x.shape[1] + heads * n, threads)
    columns = Columns(executor, len(x))
    wide, read = columns.add(heads * k), columns.add(heads * k, element)
    made = columns.add(heads * n, out)
    executor.append_features(wide, 0)
    executor.append_join([wide], read)
    executor.append_head_linear(
        matrix=pack(executor, dtype, matrices), heads=heads, x=read, out=made
    )
    run(executor, x)
    rows: F32 = executor.view(made).view(TYPES[out]).astype(np.float32)
    executor.close()
    return rows


def one_by_one(module: Any, dtype: str, element: str, matrices: F32, x: F32) -> F32:
    """The same by a product for each head."""
    heads, n, k = matrices.shape
    outs = []
    for h in range(heads):
        executor = executor_for(module, len(x), 3 * k + n, 1)
        columns = Columns(executor, len(x))
        wide, read, out = columns.add(k), columns.add(k, element), columns.add(n)
        executor.append_features(wide, 0)
        executor.append_join([wide], read)
        matrix = executor.add_matrix(dtype, n, k, False)
        executor.pack_rows(matrix, 0, n, as_bytes(matrices[h].astype(TYPES[dtype])))
        executor.append_linear(matrix, None, read, out, "none")
        run(executor, np.ascontiguousarray(x[:, h * k : (h + 1) * k]))
        outs.append(executor.view(out).view(np.float32).copy())
        executor.close()
    return np.concatenate(outs, axis=1)


def drawn(heads: int, n: int, k: int, rows: int) -> tuple[F32, F32]:
    rng = np.random.default_rng(heads * n + k)
    matrices = rng.standard_normal((heads, n, k), dtype=np.float32) / np.float32(np.sqrt(k))
    return matrices, rng.standard_normal((rows, heads * k), dtype=np.float32)


def same(a: F32, b: F32) -> None:
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("element", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize(
    ("heads", "n", "k", "rows"),
    [(1, 16, 8, 3), (3, 20, 7, 5), (4, 40, 24, 33), (5, 33, 20, 1), (16, 128, 96, 70)],
)
def test_each_head_has_the_bits_of_its_own_product(
    module: Any, heads: int, n: int, k: int, rows: int, dtype: str, element: str
) -> None:
    matrices, x = drawn(heads, n, k, rows)
    got = product(module, dtype, element, matrices, x, threads=2)
    if module.isa != "amx" or dtype != "bfloat16":  # tiles sum pairs in another order
        same(got, one_by_one(module, dtype, element, matrices, x))
    kept = matrices.astype(TYPES[dtype]).astype(np.float64)
    read = x.astype(TYPES[element]).astype(np.float64).reshape(rows, heads, k)
    exact = np.einsum("rhk,hnk->rhn", read, kept).reshape(rows, -1)
    np.testing.assert_allclose(got, exact, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_neither_rows_nor_threads_change_a_bit(module: Any, dtype: str) -> None:
    matrices, x = drawn(5, 40, 24, 50)
    whole = product(module, dtype, dtype, matrices, x, threads=1)
    for threads in (2, 3, 7):
        same(product(module, dtype, dtype, matrices, x, threads), whole)
    for row in (0, 17, 49):
        same(product(module, dtype, dtype, matrices, x[row : row + 1], 2), whole[row : row + 1])
    rounded = product(module, dtype, dtype, matrices, x, 2, out="bfloat16")
    same(rounded, whole.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize(
    "fault",
    [{"heads": 3}, {"heads": 0}, {"x": 16}, {"out": 16}, {"x": 48}],
)
def test_what_differs_in_shape_is_refused(module: Any, fault: dict[str, int]) -> None:
    executor = make(module)
    buffers = Buffers(executor)
    x, out = buffers.add(fault.get("x", 32)), buffers.add(fault.get("out", 40))
    matrix = executor.add_matrix("float32", 2 * 32, 16, False)  # two heads of 20 columns
    with pytest.raises(ValueError, match="product of heads differ in shape"):
        executor.append_head_linear(matrix=matrix, heads=fault.get("heads", 2), x=x, out=out)
    executor.close()


def test_other_matrices_and_memory_that_is_shared_are_refused(module: Any) -> None:
    executor = make(module)
    buffers = Buffers(executor)
    x, out = buffers.add(32), buffers.add(32)
    quantized = executor.add_grid_matrix(bits=8, n=32, k=16, gated=False, weight_only=False)
    gated = executor.add_matrix("float32", 32, 16, True)
    plain = executor.add_matrix("float32", 32, 16, False)
    with pytest.raises(ValueError, match="matrices of heads are not quantized"):
        executor.append_head_linear(matrix=quantized, heads=2, x=x, out=out)
    with pytest.raises(ValueError, match="differ in shape"):
        executor.append_head_linear(matrix=gated, heads=2, x=x, out=out)
    with pytest.raises(ValueError, match="lie in the same memory"):
        executor.append_head_linear(matrix=plain, heads=2, x=x, out=x)
    executor.close()


@pytest.mark.parametrize("element", ["float32", "bfloat16"])
@pytest.mark.parametrize("heads", [1, 3, 7])
def test_heads_are_joined_one_by_one(module: Any, heads: int, element: str) -> None:
    rng = np.random.default_rng(heads)
    parts = [rng.standard_normal((6, heads, c), dtype=np.float32) for c in (5, 33, 16)]
    executor = executor_for(module, 6, 8 * heads * 54, 3)
    columns = Columns(executor, 6)
    wide = [columns.add(heads * part.shape[2]) for part in parts]
    narrow = columns.add(heads * 33, "bfloat16")
    out = columns.add(heads * 54, element)
    first = 0
    for buffer, part in zip(wide, parts, strict=True):
        executor.append_features(buffer, first)
        first += heads * part.shape[2]
    executor.append_join([wide[1]], narrow)
    executor.append_join([wide[0], narrow, wide[2]], out, heads)
    run(executor, np.concatenate([part.reshape(6, -1) for part in parts], axis=1))
    parts[1] = parts[1].astype(ml_dtypes.bfloat16).astype(np.float32)
    expected = np.concatenate(parts, axis=2).reshape(6, -1).astype(TYPES[element])
    got = executor.view(out).view(TYPES[element])
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))
    executor.close()


def test_columns_that_are_not_whole_heads_are_refused(module: Any) -> None:
    executor = make(module)
    buffers = Buffers(executor)
    x, y, out = buffers.add(COLUMNS), buffers.add(3), buffers.add(COLUMNS + 3)
    with pytest.raises(ValueError, match="what is joined is not whole heads"):
        executor.append_join([x, y], out, 2)
    executor.close()
