"""Norms of parts of rows with a gate: near float64, and a row's result its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.native_executor import Buffers, make
from support.native_row_ops import check, draw, floats

pytestmark = pytest.mark.thinned(5)


@pytest.mark.parametrize(("parts", "size"), [(1, 1), (3, 7), (4, 16), (2, 50), (1, 128), (5, 200)])
@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("each_part", [False, True])
def test_gated_norm(module: Any, parts: int, size: int, gate_first: bool, each_part: bool) -> None:
    cols = parts * size
    x, gate, weight = draw(9, cols), 3 * draw(9, cols, 1), draw(1, cols, 2)[0]
    if not each_part:
        weight = weight[:size].copy()
    gates = gate / (1 + np.exp(-gate.astype(np.float64)))
    wide = x.astype(np.float64)
    if gate_first:
        wide = wide * gates
    wide = wide.reshape(9, parts, size)
    normed = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
    expected = (normed * weight.reshape(-1, size)).reshape(x.shape)
    if not gate_first:
        expected = expected * gates

    def append(executor: Any, inputs: list[int], out: int) -> None:
        executor.append_gated_norm(
            x=inputs[0],
            gate=inputs[1],
            out=out,
            weight=floats(executor, weight),
            eps=1e-5,
            size=size,
            gate_first=gate_first,
            each_part=each_part,
        )

    check(module, append, [x, gate], expected, 3e-6)


@pytest.mark.parametrize(
    ("size", "weights", "message"), [(5, 5, "whole parts of a row"), (8, 7, "weight has 28 bytes")]
)
def test_what_does_not_fit_is_refused(module: Any, size: int, weights: int, message: str) -> None:
    executor = make(module)
    buffers = Buffers(executor)
    x, gate, out = (buffers.add() for _ in range(3))
    weight = floats(executor, np.ones(weights, np.float32))
    with pytest.raises(ValueError, match=message):
        executor.append_gated_norm(
            x=x,
            gate=gate,
            out=out,
            weight=weight,
            eps=1e-5,
            size=size,
            gate_first=False,
            each_part=False,
        )
    executor.close()
