"""Native ops that put rows elsewhere: columns in another order, keys and values in the cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.native_arrays import as_bytes
from support.native_cache import ELEMENTS, Cache, Shape, fitted
from support.native_experts import gathered_by_expert
from support.native_row_ops import POSITIONS, TYPES, run

from penstock.cache.geometry import BLOCK_SIZE


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("head_dim", [8, 50, 64])
def test_kv_write(module: Any, head_dim: int, element: str) -> None:
    """What NumPy puts there, and nothing else; NaN stands where nothing is written."""
    head_dim = fitted(head_dim, element)
    shape = Shape(2, 2, head_dim, element)
    tokens, blocks = 37, 3
    rng = np.random.default_rng(head_dim)
    kv = rng.standard_normal((2, tokens, 2, head_dim), dtype=np.float32)
    order = [2, 0]  # the sequence's blocks; it begins before the step
    before = 20
    places = before + np.arange(tokens, dtype=np.int32)
    slots = np.array([order[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in places])
    caches = []
    for threads in (1, 3):
        executor = module.Executor(
            threads=threads,
            cpus=[],
            crowded=True,
            num_blocks=blocks,
            max_tokens=tokens,
            max_logits=1,
            max_sequences=1,
            max_positions=POSITIONS,
            vocabulary=1,
            arena_bytes=2 * tokens * 4 * 2 * head_dim + 4096,
            kv_elem=element,
            kv_groups=1,
            kv_parts=1,
            kv_part_bytes=len(Cache(shape, 1).bytes),
            kv_layers=[(2, head_dim, 0, 0, 0, 0, 0)],
        )
        row = 2 * head_dim * 4
        k = executor.add_buffer(0, "float32", 2 * head_dim, row, "T")
        behind = -(-tokens * row // 64) * 64
        v = executor.add_buffer(behind, "float32", 2 * head_dim, row, "T")
        executor.append_features(k, 0)
        executor.append_features(v, 2 * head_dim)
        executor.append_kv_write(layer=0, k=k, v=v)
        none, pairs = np.empty(0, np.int32), np.empty((0, 2), np.int32)
        ids = np.zeros(tokens, np.int32)
        executor.run(
            ids,
            places,
            np.array([0, tokens], np.int32),
            np.array([before + tokens], np.int32),
            [(slots.astype(np.int32), np.array([0, 2], np.int32), np.array(order, np.int32))],
            none,
            none,
            pairs,
            none,
            pairs,
            kv.transpose(1, 0, 2, 3).reshape(tokens, -1).copy(),
        )
        caches.append(executor.kv_copy(0))
        executor.close()
    np.testing.assert_array_equal(*caches)
    expected = Cache(shape, blocks)
    expected.bytes[:] = 0  # as the system gives memory
    expected.write(slots.astype(np.int32), kv[0], kv[1])
    np.testing.assert_array_equal(caches[0], expected.bytes)


@pytest.mark.parametrize("cols", [1, 40, 1024, 2500])
@pytest.mark.parametrize("element", ["float32", "bfloat16"])
def test_gather_columns(module: Any, cols: int, element: str) -> None:
    """Bit by bit what NumPy gathers, on any number of threads; each row is its own."""
    rng = np.random.default_rng(cols)
    x = rng.standard_normal((5, cols), np.float32)
    order = rng.permutation(cols).astype(np.int32)

    def gather(executor: Any, inputs: list[int], out: int) -> None:
        """Gathers into two outputs, of which the second is looked at."""
        places = executor.add_constant(as_bytes(order))
        turned = executor.add_constant(as_bytes(order[::-1].copy()))
        read = inputs[0]
        other = executor.add_buffer(5 * 3 * stride, element, cols, stride, "T")
        if element == "bfloat16":  # what products of rounded rows read
            read = executor.add_buffer(rounded_at, element, cols, stride, "T")
            executor.append_join([inputs[0]], read)
        executor.append_gather_columns(read, [other, out], [turned, places])

    stride = -(-cols * 4 // 64) * 64
    rounded_at = 5 * 2 * stride
    expected = x.astype(TYPES[element])[:, order].astype(np.float32)
    for threads in (1, 2, 3):
        got = run(module, gather, [x], element, threads=threads, spare=2)
        np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("shared", [True, False], ids=["a row for all", "a row for each"])
@pytest.mark.parametrize("chosen", [1, 3])
@pytest.mark.parametrize("element", ["float32", "bfloat16"])
def test_gather_columns_by_expert(module: Any, element: str, chosen: int, shared: bool) -> None:
    """Each of a token's experts has an order of its own."""
    rng = np.random.default_rng(4)
    tokens, experts, cols = 5, 6, 1104
    ids = np.stack([rng.permutation(experts)[:chosen] for _ in range(tokens)]).astype(np.int32)
    x = rng.standard_normal((tokens if shared else tokens * chosen, cols)).astype(TYPES[element])
    orders = np.stack([rng.permutation(cols) for _ in range(experts)]).astype(np.int32)
    rows = np.repeat(x, chosen, axis=0) if shared else x
    expected = np.take_along_axis(rows, orders[ids.reshape(-1)], axis=1)
    for threads in (1, 3):
        got = gathered_by_expert(module, x, ids, orders, threads)
        np.testing.assert_array_equal(got, expected)


def test_an_order_that_names_no_column_reads_none_outside(module: Any) -> None:
    """The order is a file's, and files may be damaged."""
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    order = np.array([-1, 6, 2**31 - 1, -(2**31), 0, 5], np.int32)

    def gather(executor: Any, inputs: list[int], out: int) -> None:
        places = executor.add_constant(as_bytes(order))
        executor.append_gather_columns(inputs[0], [out], [places])

    np.testing.assert_array_equal(run(module, gather, [x]), x[:, [5, 5, 5, 5, 0, 5]])
