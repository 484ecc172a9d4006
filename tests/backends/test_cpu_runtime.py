"""The native runtime's own kernels against NumPy, on every variant that this machine runs."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.native_arrays import as_bytes
from support.needs import require_native

from penstock.backends.cpu import native, variants
from penstock.errors import ConfigError

VARIANTS = native.runnable()
THREADS = (1, 2, 3, 7)


def convert(module: Any, x: np.ndarray, source: str, target: str) -> np.ndarray:
    dtypes = {"float32": np.uint32, "bfloat16": np.uint16, "float16": np.uint16}
    out = np.zeros(len(x), dtypes[target])
    module.convert(as_bytes(x), source, out.view(np.uint8), target)
    return out


# --- choosing a variant ------------------------------------------------------------------------


def test_the_best_runnable_variant_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    require_native()
    monkeypatch.delenv(native.ENVIRONMENT, raising=False)
    loaded = native.load()
    assert loaded.isa == next(
        v
        for v in VARIANTS
        if importlib.import_module(f"penstock.backends.cpu._native_{v}").prepare()
    )


def test_runnable_needs_every_flag() -> None:
    names = {v.isa for v in native.built()}
    full = next(v for v in variants.VARIANTS if v.isa == "avx512").flags
    assert set(native.runnable(full)) == names & {"avx512", "avx2", "baseline"}
    assert set(native.runnable(full - {"avx512_bf16"})) == names & {"avx2", "baseline"}
    assert set(native.runnable(())) == names & {"baseline"}


def test_unknown_variant_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    require_native()
    monkeypatch.setenv(native.ENVIRONMENT, "sse9")
    with pytest.raises(ConfigError, match="PENSTOCK_ISA=sse9"):
        native.load()


def test_without_modules_the_error_names_the_remedy(tmp_path: Any) -> None:
    script = (
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if '_native_' in name else find(name, *a)\n"
        "from penstock.backends.cpu.native import load\n"
        "load()"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
    )
    assert run.returncode == 1
    assert "ConfigError" in run.stderr
    assert "--backend reference" in run.stderr
    assert "compiler" in run.stderr


# --- lanes -------------------------------------------------------------------------------------


def test_bfloat16_rounds_to_nearest_even(module: Any) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 40_003, dtype=np.uint32)
    halves = (np.arange(2**16, dtype=np.uint32) << 16) | 0x8000  # every tie
    edges = np.uint32([0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0, 0x80000000])
    x = np.concatenate([bits, halves, halves - 1, halves + 1, edges]).astype(np.uint32)
    x = x[(x & 0x7F800000) != 0]  # subnormals may be read as zero, see simd.h
    values = x.view(np.float32)
    got = convert(module, values, "float32", "bfloat16")
    with np.errstate(invalid="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    nan = np.isnan(values)
    np.testing.assert_array_equal(got[~nan], expected[~nan])
    assert np.isnan(got[nan].view(ml_dtypes.bfloat16).astype(np.float32)).all()


def test_float16_rounds_to_nearest_even(module: Any) -> None:
    rng = np.random.default_rng(1)
    exponents = rng.integers(127 - 30, 127 + 20, 60_001).astype(np.uint32)
    x = (rng.integers(0, 2**32, exponents.size, dtype=np.uint32) & 0x807FFFFF) | exponents << 23
    edges = np.float32([65504, 65519.996, 65520, 2**-24, 2**-25, 2**-25 * 1.0001, 0, -0.0, np.inf])
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    ties = np.float32(halves[np.isfinite(halves)]) * np.float32(1 + 2**-11)
    values = np.concatenate([x.view(np.float32), edges, ties[np.isfinite(ties)]])
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16).view(np.uint16)
    np.testing.assert_array_equal(convert(module, values, "float32", "float16"), expected)
    assert np.isnan(convert(module, np.float32([np.nan]), "float32", "float16").view(np.float16))


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_every_two_byte_number_widens_exactly(module: Any, name: str) -> None:
    dtype = ml_dtypes.bfloat16 if name == "bfloat16" else np.float16
    x = np.arange(2**16, dtype=np.uint16).view(dtype)
    got = convert(module, x, name, "float32").view(np.float32)
    np.testing.assert_array_equal(got, x.astype(np.float32))


def exact(function: str, x: float) -> float:
    if function == "exp":
        return math.exp(x) if x < 700 else math.inf
    if function == "silu":
        return x / (1 + math.exp(-x)) if x > -700 else -0.0
    if function == "gelu":
        return x * 0.5 * math.erfc(-x / math.sqrt(2))
    if function == "gelu_tanh":
        return x / (1 + math.exp(min(700, -2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    if function == "tanh":
        return math.tanh(x)
    if function == "sigmoid":
        return 1 / (1 + math.exp(-x))
    if function == "relu":
        return max(x, 0.0)
    return 1 / math.sqrt(x)


# Largest relative error allowed where the result is a normal number. The activations lose bits
# where exp of an already rounded argument is large or small.
BOUNDS = {
    "exp": 2.5e-7,
    "silu": 5e-7,
    "gelu": 4e-6,
    "gelu_tanh": 8e-6,
    "rsqrt": 1.3e-7,
    "tanh": 1.5e-7,
    "relu": 1e-9,
    "sigmoid": 4e-7,
}


@pytest.mark.parametrize("function", list(BOUNDS))
def test_functions_are_accurate(module: Any, function: str) -> None:
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.uniform(-9, 9, 3000), rng.normal(0, 0.01, 1000), [0.0, 1.0, -1.0]])
    if function == "exp":
        x = np.concatenate([x, rng.uniform(-87, 88.7, 3000)])
    if function == "rsqrt":
        x = np.abs(x) + 1e-6
    x = x.astype(np.float32)
    got = np.array(module.elementwise(function, x))
    expected = np.array([exact(function, float(v)) for v in x])
    scale = np.maximum(np.abs(expected), 1.2e-38)
    assert np.max(np.abs(got - expected) / scale) < BOUNDS[function]


def test_exp_at_its_edges(module: Any) -> None:
    x = np.float32([-np.inf, -1e30, -104, np.inf, 89, 0, np.nan, -0.0])
    got = np.array(module.elementwise("exp", x), np.float32)
    np.testing.assert_array_equal(got, np.float32([0, 0, 0, np.inf, np.inf, 1, np.nan, 1]))
    small = np.array(module.elementwise("exp", np.float32([-95, -100, -103])))
    np.testing.assert_allclose(small, np.exp([-95.0, -100.0, -103.0]), atol=1.5e-45)


def test_tanh_at_its_edges(module: Any) -> None:
    x = np.float32([-np.inf, -1e30, -20, np.inf, 1e30, 0, np.nan, 0.625, -0.625, 1e-38])
    got = np.array(module.elementwise("tanh", x), np.float32)
    edge = np.float32(np.tanh(0.625))
    expected = np.float32([-1, -1, -1, 1, 1, 0, np.nan, edge, -edge, 1e-38])
    np.testing.assert_allclose(got, expected, rtol=1.2e-7)
    np.testing.assert_array_equal(got[:7], expected[:7])
    # It rises: nothing steps back where one formula takes over from the other.
    near = np.linspace(0.624, 0.626, 4001, dtype=np.float32)
    steps = np.diff(np.array(module.elementwise("tanh", near)))
    assert steps.min() >= -1.2e-7


def test_relu_at_its_edges(module: Any) -> None:
    x = np.float32([-np.inf, -1e-45, np.inf, np.nan, 0, 1e-45])
    got = np.array(module.elementwise("relu", x), np.float32)
    np.testing.assert_array_equal(got, np.float32([0, 0, np.inf, np.nan, 0, 1e-45]))


@pytest.mark.parametrize("function", ["silu", "gelu", "gelu_tanh", "relu"])
def test_activations_far_out(module: Any, function: str) -> None:
    got = np.array(module.elementwise(function, np.float32([-1000, 1000, 0, 30000])), np.float32)
    np.testing.assert_array_equal(got, np.float32([0, 1000, 0, 30000]))


def test_horizontal_reductions_follow_one_tree(module: Any) -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        x = (rng.standard_normal(16) * 10.0 ** rng.integers(-4, 5, 16)).astype(np.float32)
        tree = x
        while len(tree) > 1:
            tree = tree[: len(tree) // 2] + tree[len(tree) // 2 :]
        total, largest = module.reduce(x)
        assert np.float32(total) == tree[0]
        assert np.float32(largest) == x.max()


# --- kernels -----------------------------------------------------------------------------------


def add_norm(
    module: Any,
    x: np.ndarray,
    delta: np.ndarray | None,
    weight: np.ndarray,
    elem: str,
    threads: int,
) -> tuple[np.ndarray, np.ndarray]:
    residual = x.copy()
    dtype = np.float32 if elem == "float32" else ml_dtypes.bfloat16
    out = np.zeros(x.shape, dtype)
    module.add_norm(residual, delta, weight, 1e-5, as_bytes_mutable(out), elem, threads)
    return residual, out


def as_bytes_mutable(array: np.ndarray) -> np.ndarray:
    view = array.reshape(-1).view(np.uint8)
    assert np.shares_memory(view, array)
    return view


@pytest.mark.parametrize("cols", [1, 7, 16, 64, 100, 576, 2048])
@pytest.mark.parametrize("elem", ["float32", "bfloat16"])
@pytest.mark.parametrize("with_delta", [False, True])
def test_add_norm(module: Any, cols: int, elem: str, with_delta: bool) -> None:
    rng = np.random.default_rng(cols)
    x, delta = rng.standard_normal((2, 5, cols)).astype(np.float32)
    weight = rng.standard_normal(cols).astype(np.float32)
    residual, out = add_norm(module, x, delta if with_delta else None, weight, elem, 2)
    expected = x + delta if with_delta else x
    np.testing.assert_array_equal(residual, expected)
    wide = expected.astype(np.float64)
    normed = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    tolerance = 1e-6 if elem == "float32" else 2**-8
    np.testing.assert_allclose(out.astype(np.float64), normed, rtol=tolerance, atol=1e-6)


def test_add_norm_row_is_the_same_alone_and_on_any_threads(module: Any) -> None:
    rng = np.random.default_rng(4)
    x, delta = rng.standard_normal((2, 23, 331)).astype(np.float32)
    weight = rng.standard_normal(331).astype(np.float32)
    rows, first = add_norm(module, x, delta, weight, "float32", 1)
    for threads in THREADS[1:]:
        again, out = add_norm(module, x, delta, weight, "float32", threads)
        assert (again.tobytes(), out.tobytes()) == (rows.tobytes(), first.tobytes())
    for r in range(23):
        _, alone = add_norm(module, x[r : r + 1], delta[r : r + 1], weight, "float32", 1)
        assert alone.tobytes() == first[r].tobytes()


@pytest.mark.parametrize("elem", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("cols", [3, 16, 45, 128])
def test_embed(module: Any, elem: str, cols: int) -> None:
    rng = np.random.default_rng(5)
    dtypes = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
    table = rng.standard_normal((50, cols)).astype(dtypes[elem])
    ids = rng.integers(0, 50, 31).astype(np.int32)
    for threads in THREADS:
        out = np.full((31, cols), np.nan, np.float32)
        module.embed(ids, as_bytes(table), elem, out, threads)
        np.testing.assert_array_equal(out, table[ids].astype(np.float32))


def argmax(module: Any, x: np.ndarray, threads: int) -> list[int]:
    out = np.full(len(x), -1, np.int32)
    module.argmax(np.ascontiguousarray(x, np.float32), out, threads)
    return out.tolist()


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 5),
    cols=st.integers(1, 70),
    levels=st.integers(1, 9),
    threads=st.sampled_from(THREADS),
)
@settings(max_examples=60, deadline=None)
def test_argmax_takes_the_lowest_of_equals(
    seed: int, rows: int, cols: int, levels: int, threads: int
) -> None:
    x = np.random.default_rng(seed).integers(0, levels, (rows, cols)).astype(np.float32)
    for isa in VARIANTS:
        assert argmax(native.load(isa), x, threads) == x.argmax(axis=1).tolist()


def test_argmax_across_the_cuts_of_a_wide_row(module: Any) -> None:
    cols = 3 * 16384 + 77
    x = np.random.default_rng(6).standard_normal((3, cols)).astype(np.float32)
    x[0, [16383, 16384, 40000]] = 9  # ties on both sides of a cut
    x[1, [cols - 1]] = 9
    x[2, [0, 49152]] = 9
    for threads in THREADS:
        assert argmax(module, x, threads) == [16383, cols - 1, 0]


def test_argmax_finds_the_first_nan_as_numpy_does(module: Any) -> None:
    nan, inf = np.nan, np.inf
    rows = [[nan] * 20, [1, 2, nan, 3] * 5, [-inf] * 20, [-inf] * 19 + [nan], [1, inf] * 10]
    for threads in THREADS:
        assert argmax(module, np.float32(rows), threads) == [0, 2, 0, 19, 1]
    wide = np.random.default_rng(7).standard_normal((40000 // 97 + 1, 40000)).astype(np.float32)
    for row, at in enumerate(range(0, 40000, 97)):
        wide[row, [at, (at + 20000) % 40000]] = nan
    for threads in THREADS:
        assert argmax(module, wide, threads) == wide.argmax(axis=1).tolist()


def linear(
    module: Any,
    parts: list[np.ndarray],
    elem: str,
    bias: np.ndarray | None,
    gate: str,
    x: np.ndarray,
    x_elem: str,
    threads: int,
) -> np.ndarray:
    n = parts[0].shape[0] if gate != "none" else sum(len(p) for p in parts)
    out = np.full((len(x), n), np.nan, np.float32)
    module.linear(
        parts=[(as_bytes(p), len(p)) for p in parts],
        elem=elem,
        k=parts[0].shape[1],
        bias=bias,
        gate=gate,
        x=as_bytes(x),
        x_elem=x_elem,
        out=as_bytes_mutable(out),
        out_elem="float32",
        threads=threads,
    )
    return out


@pytest.mark.parametrize("elem", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("gate", ["none", "silu"])
def test_packed_parts_multiply_as_their_concatenation(module: Any, elem: str, gate: str) -> None:
    """What bind.py relies on: joined parts off the panel grid, and bias of gate before up."""
    rng = np.random.default_rng(7)
    dtypes = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
    sizes = (40, 40) if gate != "none" else (24, 8, 13)
    parts = [(rng.standard_normal((n, 72)) / 8).astype(dtypes[elem]) for n in sizes]
    bias = rng.standard_normal(sum(sizes)).astype(np.float32)
    x_elem = "bfloat16" if elem == "bfloat16" else "float32"
    x = rng.standard_normal((19, 72)).astype(dtypes[x_elem])
    got = linear(module, parts, elem, bias, gate, x, x_elem, 1)
    wide = x.astype(np.float64) @ np.concatenate(parts).astype(np.float64).T + bias
    if gate != "none":
        wide = wide[:, :40] / (1 + np.exp(-wide[:, :40])) * wide[:, 40:]
    np.testing.assert_allclose(got, wide, rtol=2e-5, atol=2e-5)
    for threads in THREADS[1:]:
        assert (
            linear(module, parts, elem, bias, gate, x, x_elem, threads).tobytes() == got.tobytes()
        )


@pytest.mark.thinned(3)
def test_measured_ceilings_are_plausible(module: Any) -> None:
    seconds = 0.02  # plausible, and no more
    for most, (rate, spread) in (
        (1e13, module.measure_reading(1 << 25, 1, seconds)),
        (1e14, module.measure_f32(1, seconds)),
        (1e14, module.measure_bf16(1, seconds)),
    ):
        assert 1e8 < rate < most
        assert 0 <= spread <= 1
    ops, _ = module.measure_int8(1, seconds)
    assert ops == 0 if module.isa == "baseline" else 1e8 < ops < 1e15
