"""Encoders of blocks, against those of the ``gguf`` package, and against ggml's least errors."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.quant import BlockTensor
from penstock.quant.encode import ENCODERS, MAX_VALUE, encode
from penstock.quant.formats import GGUF_FORMATS

K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
LEGACY = tuple(name for name in ENCODERS if name not in K_QUANTS)
GGML_ERRORS = {
    "Q2_K": 8.808e-2,
    "Q3_K": 2.275e-2,
    "Q4_K": 5.090e-3,
    "Q5_K": 1.304e-3,
    "Q6_K": 3.155e-4,
}
"""Squared errors, relative to those of zeros, of ``ggml_quantize_chunk`` on the values of
:func:`drawn`."""


def drawn(rows: int = 256, columns: int = 2048) -> NDArray[np.float32]:
    generator = np.random.default_rng(0)
    return generator.standard_normal((rows, columns)).astype(np.float32) * np.float32(0.02)


def decoded(name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    return BlockTensor(GGUF_FORMATS[name], encode(name, values)).dequantize()


def package(name: str, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    return quantize(values, gguf.GGMLQuantizationType[name]).reshape(encode(name, values).shape)


@pytest.mark.parametrize("name", LEGACY)
def test_bits_of_the_package(name: str) -> None:
    values = drawn(33, 96)
    values[0] = 0
    values[1] = 0.25  # one value alone
    values[2] = np.arange(96) - 48.5  # halves of steps
    values[3, ::2] *= -1000
    values[4] *= np.float32(1e-6)  # scales that float16 has few bits for
    values[5, :32] = -np.abs(values[5, :32])
    assert np.array_equal(encode(name, values), package(name, values))


@pytest.mark.parametrize("name", LEGACY)
@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-40, 13))
@settings(max_examples=30, deadline=None)
def test_bits_of_the_package_at_any_size(name: str, seed: int, power: int) -> None:
    generator = np.random.default_rng(seed)
    values = np.ldexp(generator.uniform(-1, 1, (4, 64)).astype(np.float32), power)
    values = np.where(generator.random((4, 64)) < 0.3, np.rint(values * 8) / 8, values)
    values = values.astype(np.float32)
    assert np.array_equal(encode(name, values), package(name, values))


@pytest.mark.parametrize("name", K_QUANTS)
def test_errors_are_no_larger_than_ggmls(name: str) -> None:
    values = drawn()
    error = np.sum((decoded(name, values) - values) ** 2, dtype=np.float64)
    assert error / np.sum(values**2, dtype=np.float64) < GGML_ERRORS[name]


@pytest.mark.parametrize("name", K_QUANTS)
def test_what_a_format_holds_is_nearly_found_again(name: str) -> None:
    values = decoded(name, drawn(16, 512))
    error = np.sum((decoded(name, values) - values) ** 2, dtype=np.float64)
    assert error / np.sum(values**2, dtype=np.float64) < 0.3 * GGML_ERRORS[name]


@pytest.mark.parametrize("name", ENCODERS)
def test_rows_do_not_depend_on_each_other(name: str) -> None:
    values = drawn(300, 512)
    values[7] *= 1000
    whole = encode(name, values)
    assert np.array_equal(whole[7:9], encode(name, values[7:9]))
    assert np.array_equal(whole[299:], encode(name, values[299:]))


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, MAX_VALUE, -MAX_VALUE, 1e-8, -3e-38])
def test_equal_values(name: str, value: float) -> None:
    values = np.full((2, 256), value, np.float32)
    found = decoded(name, values)
    assert np.isfinite(found).all()
    assert np.abs(found - values).max() <= abs(value) / 100 or abs(value) < 1e-6


@pytest.mark.parametrize("name", K_QUANTS)
def test_one_large_value_and_many_small(name: str) -> None:
    values = drawn(4, 256)
    values[:, 100] = [50.0, -50.0, 60000.0, -60000.0]
    found = decoded(name, values)
    assert np.isfinite(found).all()
    assert np.allclose(found[:, 100], values[:, 100], rtol=0.1)
    assert np.abs(np.delete(found, 100, axis=1)).max() <= 0.1 * 60000


def test_no_rows() -> None:
    assert encode("Q4_K", np.empty((0, 256), np.float32)).shape == (0, 1, 144)
