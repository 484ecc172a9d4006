"""A native executor that runs one op over rows of features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from support.native_arrays import as_bytes

F32 = NDArray[np.float32]
Append = Callable[[Any, list[int], int], None]
"""Appends an op to an executor, which reads these buffers and writes that one."""

TYPES: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
POSITIONS = 64


def run(
    module: Any,
    append: Append,
    inputs: list[F32],
    element: str = "float32",
    threads: int = 2,
    in_place: bool = False,
    positions: NDArray[np.int32] | None = None,
    spare: int = 0,
) -> F32:
    """The rows that an op makes of ``inputs``, as float32; in place, it writes the first of them.

    Each row is a sequence of its own, at its position of ``positions``. Behind inputs and output
    there is memory for ``spare`` buffers more.
    """
    tokens, cols = inputs[0].shape
    places = np.zeros(tokens, np.int32) if positions is None else positions
    sizes = [-(-x.shape[1] * 4 // 64) * 64 for x in (*inputs, inputs[0])]
    executor = module.Executor(
        threads=threads,
        cpus=[],
        crowded=True,
        num_blocks=1,
        max_tokens=tokens,
        max_logits=1,
        max_sequences=tokens,
        max_positions=POSITIONS,
        vocabulary=1,
        arena_bytes=tokens * (sum(sizes) + spare * sizes[-1]),
        kv_elem="float32",
        kv_layers=[],
    )
    at = np.cumsum([0, *sizes]) * tokens
    buffers = [
        executor.add_buffer(int(at[i]), "float32", x.shape[1], sizes[i], "T")
        for i, x in enumerate(inputs)
    ]
    out = buffers[0]
    if not in_place:
        out = executor.add_buffer(int(at[len(inputs)]), element, cols, sizes[-1], "T")
    first = 0
    for buffer, x in zip(buffers, inputs, strict=True):
        executor.append_features(buffer, first)
        first += x.shape[1]
    append(executor, buffers, out)
    none, pairs = np.empty(0, np.int32), np.empty((0, 2), np.int32)
    starts = np.arange(tokens + 1, dtype=np.int32)
    executor.run(
        np.zeros(tokens, np.int32),
        places,
        starts,
        places + 1,
        [],
        none,
        none,
        pairs,
        none,
        pairs,
        np.concatenate(inputs, axis=1),
    )
    rows = executor.view(out).view(TYPES["float32" if in_place else element])
    result: F32 = rows.astype(np.float32)
    executor.close()
    return result


def floats(executor: Any, x: F32) -> int:
    return int(executor.add_constant(as_bytes(x)))


def check(
    module: Any,
    append: Append,
    inputs: list[F32],
    expected: NDArray[Any],
    tolerance: float = 1e-6,
    **options: Any,
) -> None:
    """The op's rows are near what is expected, in place and rounded too; each is its own."""
    got = run(module, append, inputs, **options)
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    rounded = run(module, append, inputs, "bfloat16", **options)
    np.testing.assert_array_equal(rounded, got.astype(ml_dtypes.bfloat16).astype(np.float32))
    for threads, in_place in ((1, False), (3, False), (2, True)):
        again = run(module, append, inputs, threads=threads, in_place=in_place, **options)
        np.testing.assert_array_equal(again.view(np.uint32), got.view(np.uint32))
    some = [x[3:5] for x in inputs]
    if "positions" in options:
        options["positions"] = options["positions"][3:5]
    alone = run(module, append, some, **options)
    np.testing.assert_array_equal(alone.view(np.uint32), got[3:5].view(np.uint32))


def draw(rows: int, cols: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed + cols).standard_normal((rows, cols), dtype=np.float32)
