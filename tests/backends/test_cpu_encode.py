"""Native encoders of blocks give the bytes of those in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.backends.cpu.block_layouts import BLOCK_LAYOUTS
from penstock.backends.cpu.encode import NativeEncoder, matrix_encoder
from penstock.backends.cpu.interface import NativeModule
from penstock.quant.encode import ENCODERS, MAX_VALUE, encode
from penstock.quant.formats import BLOCK_FORMATS

F32 = NDArray[np.float32]


def drawn(generator: np.random.Generator, rows: int, columns: int, power: int) -> F32:
    """Values of all kinds: some equal, some on a grid, zeros of both signs, rows of one sign."""
    shape = rows, columns
    values = np.ldexp(generator.standard_normal(shape).astype(np.float32), power)
    values = np.where(generator.random(shape) < 0.2, np.rint(values * 8) / 8, values)
    values = np.where(generator.random(shape) < 0.1, np.float32(-0.0), values)
    values[generator.random(rows) < 0.2] *= np.float32(1e-6)
    at = generator.random(rows) < 0.2
    values[at] = np.abs(values[at])
    values[generator.random(rows) < 0.1] = generator.choice([0.0, -0.0, 1.0, -3e-38])
    values[generator.random(rows) < 0.1, columns // 3] = MAX_VALUE
    return np.clip(values, -MAX_VALUE, MAX_VALUE).astype(np.float32)


@pytest.mark.parametrize("name", ENCODERS)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 20),
    blocks=st.integers(1, 3),
    power=st.integers(-30, 12),
    weighted=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_bytes(
    module: NativeModule, name: str, seed: int, rows: int, blocks: int, power: int, weighted: bool
) -> None:
    generator = np.random.default_rng(seed)
    values = drawn(generator, rows, 256 * blocks, power)
    importance = None
    if weighted:
        importance = np.exp(2 * generator.standard_normal(values.shape[1])).astype(np.float32)
        importance[generator.random(values.shape[1]) < 0.1] = np.float32(1e-6)
    expected = encode(name, values, importance)
    found = NativeEncoder(module)(name, values, importance)
    different = np.argwhere((found != expected).any(axis=2))
    assert not len(different), (different[:5], values[different[0][0]])


def test_sizes_that_do_not_agree(module: NativeModule) -> None:
    values, out = np.zeros(256, np.float32), np.zeros(144, np.uint8)
    module.encode_blocks("Q4_K", values, None, out)
    with pytest.raises(ValueError, match="do not end with a block"):
        module.encode_blocks("Q4_K", values[:255], None, out)
    with pytest.raises(ValueError, match="wrong size"):
        module.encode_blocks("Q4_K", values, None, out[:143])
    with pytest.raises(ValueError, match="importance does not end"):
        module.encode_blocks("Q4_K", values, values[:100], out)
    with pytest.raises(ValueError, match="no kernel rounds"):
        module.encode_blocks("IQ4_NL", values, None, out)


def test_no_rows() -> None:
    assert matrix_encoder()("Q4_K", np.empty((0, 256), np.float32)).shape == (0, 1, 144)


def test_blocks_have_one_size(module: NativeModule) -> None:
    """What the kernels read and write of files is of the size that formats, and GGUF's types,
    have."""
    sizes = {name: module.block_size(name) for name in BLOCK_LAYOUTS}
    schemes = {name: BLOCK_FORMATS[name].scheme for name in BLOCK_LAYOUTS}
    assert sizes == {name: (each.columns, each.block_bytes) for name, each in schemes.items()}
    with pytest.raises(ValueError, match="blocks of the format Q9_X"):
        module.block_size("Q9_X")
