"""Ops that an executor runs on rows, one by one: equal to NumPy, and a row's result its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.native_arrays import as_bytes
from support.native_row_ops import POSITIONS, TYPES, Append, check, draw, floats, run

from penstock.backends.reference import numerics
from penstock.models.position_scale import PositionScale

pytestmark = pytest.mark.thinned(5)

COLS = [1, 7, 16, 33, 64, 100, 576]


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("with_weight", [True, False])
def test_rms_norm(module: Any, cols: int, with_weight: bool) -> None:
    x, weight = draw(9, cols), draw(1, cols, 1)[0]
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5)
    if with_weight:
        expected = expected * weight

    def append(executor: Any, inputs: list[int], out: int) -> None:
        by = floats(executor, weight) if with_weight else None
        executor.append_rms_norm(inputs[0], out, by, 1e-5)

    check(module, append, [x], expected)


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize(
    ("with_weight", "with_bias"), [(True, False), (True, True), (False, False), (False, True)]
)
@pytest.mark.parametrize("mean", [0.0, 300.0])
def test_layer_norm(
    module: Any, cols: int, with_weight: bool, with_bias: bool, mean: float
) -> None:
    """The variance is one of squared differences, not a difference of squares: a large mean costs
    no digits."""
    x = draw(9, cols) + np.float32(mean)
    weight, bias = draw(2, cols, 1)
    wide = x.astype(np.float64)
    centered = wide - wide.mean(1, keepdims=True)
    expected = centered / np.sqrt((centered**2).mean(1, keepdims=True) + 1e-5)
    if with_weight:
        expected = expected * weight
    if with_bias:
        expected = expected + bias

    def append(executor: Any, inputs: list[int], out: int) -> None:
        added = floats(executor, bias) if with_bias else None
        by = floats(executor, weight) if with_weight else None
        executor.append_layer_norm(inputs[0], out, by, added, 1e-5)

    check(module, append, [x], expected, 1e-4 if mean else 3e-6)


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 1), (3, 7), (4, 16), (2, 50), (2, 512)])
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("each_head", [False, True])
@pytest.mark.parametrize("with_weight", [False, True])
def test_head_norm(
    module: Any, heads: int, head_dim: int, centered: bool, each_head: bool, with_weight: bool
) -> None:
    """Weights are those of all heads or of each; a centered norm has a bias."""
    x, (weight, bias) = draw(9, heads * head_dim), draw(2, heads * head_dim, 1)
    if not each_head:
        weight, bias = weight[:head_dim].copy(), bias[:head_dim].copy()
    wide = x.reshape(9, heads, head_dim).astype(np.float64)
    if centered:
        wide = wide - wide.mean(-1, keepdims=True)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    if with_weight:
        expected = expected * weight.reshape(-1, head_dim)
    if centered:
        expected = expected + bias.reshape(-1, head_dim)

    def append(executor: Any, inputs: list[int], out: int) -> None:
        executor.append_head_norm(
            inputs[0],
            out,
            head_dim,
            floats(executor, weight) if with_weight else None,
            1e-6,
            bias=floats(executor, bias) if centered else None,
            layer=centered,
            each_head=each_head,
        )

    check(module, append, [x], expected.reshape(x.shape), 3e-6)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("heads", "head_dim", "dim"), [(3, 8, 8), (2, 50, 50), (2, 80, 32), (2, 7, 4), (3, 16, 0)]
)
def test_rope(module: Any, heads: int, head_dim: int, dim: int, interleaved: bool) -> None:
    x = draw(9, heads * head_dim)
    positions = np.random.default_rng(1).integers(0, POSITIONS, 9).astype(np.int32)
    angles = np.arange(POSITIONS)[:, None] * 10000.0 ** (-np.arange(0, dim, 2) / max(dim, 1))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    turned = numerics.rotate(
        x.reshape(9, heads, head_dim), cos[positions], sin[positions], interleaved
    )

    def append(executor: Any, inputs: list[int], out: int) -> None:
        executor.append_rope(
            x=inputs[0],
            out=out,
            head_dim=head_dim,
            cos=floats(executor, cos),
            sin=floats(executor, sin),
            rope_dim=dim,
            interleaved=interleaved,
        )

    check(module, append, [x], turned.reshape(x.shape), positions=positions)


def test_rotations_of_neighbours_are_those_of_halves_in_another_order(module: Any) -> None:
    dim, x = 32, draw(5, 32)
    positions = np.arange(5, dtype=np.int32) * 9
    angles = np.arange(POSITIONS)[:, None] * 10000.0 ** (-np.arange(0, dim, 2) / dim)
    tables = [f(angles).astype(np.float32) for f in (np.cos, np.sin)]

    def append(interleaved: bool) -> Append:
        def call(executor: Any, inputs: list[int], out: int) -> None:
            cos, sin = (floats(executor, table) for table in tables)
            executor.append_rope(
                x=inputs[0],
                out=out,
                head_dim=dim,
                cos=cos,
                sin=sin,
                rope_dim=dim,
                interleaved=interleaved,
            )

        return call

    order = np.concatenate([np.arange(0, dim, 2), np.arange(1, dim, 2)])
    halves = run(module, append(False), [np.ascontiguousarray(x[:, order])], positions=positions)
    neighbours = run(module, append(True), [x], positions=positions)
    np.testing.assert_array_equal(neighbours[:, order], halves)


@pytest.mark.parametrize("cols", [1, 17, 64, 4096, 9000])
@pytest.mark.parametrize(
    "activation", ["silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid", "identity"]
)
def test_gate(module: Any, cols: int, activation: Any) -> None:
    gate, up = 2 * draw(5, cols), draw(5, cols, 1)
    expected = numerics.activate(gate, activation) * up

    def append(executor: Any, inputs: list[int], out: int) -> None:
        executor.append_gate(*inputs, out, activation)

    check(module, append, [gate, up], expected, 2e-6)


@pytest.mark.parametrize("cols", [1, 17, 4096, 9000])
def test_scale(module: Any, cols: int) -> None:
    x = draw(5, cols)

    def append(executor: Any, inputs: list[int], out: int) -> None:
        executor.append_scale(inputs[0], out, 0.3)

    np.testing.assert_array_equal(run(module, append, [x]), x * np.float32(0.3))
    check(module, append, [x], x * np.float32(0.3))


@pytest.mark.parametrize("cols", [1, 17, 4096, 9000])
def test_scale_by_a_weight(module: Any, cols: int) -> None:
    x, factor = draw(5, cols), np.array([-1.7], np.float32)

    def append(executor: Any, inputs: list[int], out: int) -> None:
        executor.append_scale_by(inputs[0], out, floats(executor, factor))

    np.testing.assert_array_equal(run(module, append, [x]), x * factor)
    check(module, append, [x], x * factor)


@pytest.mark.parametrize(("first", "cols"), [(0, 40), (0, 7), (3, 16), (23, 17), (39, 1)])
def test_columns(module: Any, first: int, cols: int) -> None:
    """Columns of an op's input, here of the second of two buffers, which decides out's size."""
    x, narrow = draw(5, 40), draw(5, cols)

    def append(executor: Any, inputs: list[int], out: int) -> None:
        executor.append_columns(inputs[1], out, first)

    for threads in (1, 2):
        got = run(module, append, [narrow, x], threads=threads)
        np.testing.assert_array_equal(got, x[:, first : first + cols])


@pytest.mark.parametrize("cols", [1, 17, 4096, 9000])
def test_soft_cap(module: Any, cols: int) -> None:
    x = 40 * draw(5, cols)
    expected = 30 * np.tanh(x.astype(np.float64) / 30)

    def append(executor: Any, inputs: list[int], out: int) -> None:
        executor.append_soft_cap(inputs[0], out, 30.0)

    check(module, append, [x], expected, 1e-6)
    edges = np.array([[0.0, -0.0, 1e-30, np.inf, -np.inf, np.nan, 1e38, -1e-20]], np.float32)
    got = run(module, append, [edges])
    np.testing.assert_array_equal(got[0, :2], [0, 0])
    np.testing.assert_array_equal(got[0, 3:7], np.float32([30, -30, np.nan, 30]))
    np.testing.assert_allclose(got[0, [2, 7]], edges[0, [2, 7]], rtol=1e-6)


@pytest.mark.parametrize("cols", [1, 17, 4096, 9000])
def test_xielu(module: Any, cols: int) -> None:
    x = 3 * draw(5, cols)
    numbers = {"p": -0.3, "n": 1.2, "beta": 0.5, "eps": -1e-6}

    def append(executor: Any, inputs: list[int], out: int) -> None:
        each = {name: np.array([number], np.float32) for name, number in numbers.items()}
        constants = {name: floats(executor, number) for name, number in each.items()}
        executor.append_xielu(x=inputs[0], out=out, **constants)

    def expected(x: Any) -> Any:
        x = x.astype(np.float64)
        rising, falling = (np.log1p(np.exp(numbers[name])) for name in ("p", "n"))
        below = (np.expm1(np.minimum(x, -1e-6)) - x) * (0.5 + falling)
        return np.where(x > 0, rising * x * x, below) + 0.5 * x

    check(module, append, [x], expected(x), 1e-6)
    edges = np.array([[-1e-4, -0.4999, -0.5001, -30.0, -1e4, 1e-4, 30.0, 0.0]], np.float32)
    np.testing.assert_allclose(run(module, append, [edges]), expected(edges), rtol=1e-5, atol=3e-6)
    ends = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    np.testing.assert_array_equal(run(module, append, [ends]), [[np.nan, np.inf, np.nan]])


@pytest.mark.parametrize("cols", [1, 17, 4096, 9000])
def test_clamp(module: Any, cols: int) -> None:
    x = draw(5, cols)

    def append(executor: Any, inputs: list[int], out: int) -> None:
        executor.append_clamp(inputs[0], out, 0.5)

    np.testing.assert_array_equal(run(module, append, [x]), x.clip(-0.5, 0.5))
    check(module, append, [x], x.clip(-0.5, 0.5))
    edges = np.array([[np.inf, -np.inf, np.nan, 0.5, -0.5, 1e-45]], np.float32)
    expected = np.float32([[0.5, -0.5, np.nan, 0.5, -0.5, 1e-45]])
    np.testing.assert_array_equal(run(module, append, [edges]), expected)


@pytest.mark.parametrize("cols", [1, 17, 4096])
@pytest.mark.parametrize(("period", "offset"), [(1, 0), (7, 1), (64, 100), (1000, 0)])
def test_scale_by_position(module: Any, cols: int, period: int, offset: int) -> None:
    x = draw(9, cols)
    positions = np.random.default_rng(1).integers(0, POSITIONS, 9).astype(np.int32)
    positions[:2] = 0, POSITIONS - 1
    by = 1 + 0.3 * np.log(1 + (positions + offset) // period)
    factors = PositionScale(0.3, period, offset).factors(POSITIONS)

    def append(executor: Any, inputs: list[int], out: int) -> None:
        executor.append_scale_by_position(
            x=inputs[0],
            out=out,
            factors=floats(executor, factors),
            period=period,
            offset=offset,
        )

    expected = x * by[:, None].astype(np.float32)
    np.testing.assert_array_equal(run(module, append, [x], positions=positions), expected)
    check(module, append, [x], expected, positions=positions)


@pytest.mark.parametrize("cols", [1, 16, 33, 576])
@pytest.mark.parametrize("element", list(TYPES) + ["float16"])
@pytest.mark.parametrize("offset", [0, 2])
def test_add_positions(module: Any, cols: int, element: str, offset: int) -> None:
    x = draw(9, cols)
    table = draw(POSITIONS + offset, cols, 1).astype(TYPES.get(element, np.float16))
    positions = np.random.default_rng(1).integers(0, POSITIONS, 9).astype(np.int32)
    positions[:2] = 0, POSITIONS - 1
    expected = x + table[positions + offset].astype(np.float32)

    def append(executor: Any, inputs: list[int], out: int) -> None:
        executor.append_add_positions(
            x=inputs[0],
            out=out,
            table=executor.add_constant(as_bytes(table)),
            elem=element,
            rows=len(table),
            offset=offset,
        )

    for threads, in_place in ((1, False), (3, False), (2, True)):
        got = run(module, append, [x], threads=threads, in_place=in_place, positions=positions)
        np.testing.assert_array_equal(got, expected)
