"""The assembly that unpacks codes, executed for every word, zero and window there is."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from backends.cuda.ptx import U32, Assembly, assembly_of
from numpy.typing import NDArray

pytest.importorskip("triton", reason="triton is not installed")

from penstock.backends.cuda.kernels import operands

WORDS: NDArray[np.uint16] = np.arange(1 << 16, dtype=np.uint16)


def halves(values: NDArray[np.uint16]) -> U32:
    """Pairs of 16 bits as registers, the first lowest; one value: in both halves of each."""
    if values.ndim == 0:
        values = np.repeat(values, len(WORDS))
    return np.ascontiguousarray(values).view(np.uint32)


def bfloat16(value: float) -> U32:
    return halves(np.asarray(value, ml_dtypes.bfloat16).view(np.uint16))


def floats(register: U32) -> NDArray[np.float32]:
    return register.view(ml_dtypes.bfloat16).astype(np.float32)


def nibble(index: int) -> NDArray[np.int32]:
    return (WORDS >> 4 * index & 15).astype(np.int32)


def signed(nibbles: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.where(nibbles < 8, nibbles, nibbles - 16)


def planes_of_bytes(assembly: Assembly, *inputs: U32) -> list[NDArray[np.int8]]:
    pairs = halves(WORDS).reshape(-1, 2)
    outs = assembly.run(pairs[:, 0].copy(), pairs[:, 1].copy(), *inputs)
    return [out.view(np.int8) for out in outs]


def test_bytes_less_zeros() -> None:
    assembly = assembly_of(operands, "bytes_as")
    assert assembly.pack == 2
    codes = WORDS.view(np.int8).reshape(-1, 2).astype(np.int32)
    for zero in (-128, -77, 0, 1, 127):
        outs = assembly.run(halves(WORDS), bfloat16(-zero), bfloat16(zero))
        assert (floats(outs[0]) == codes[:, 0] - zero).all()
        assert (floats(outs[1]) == codes[:, 1] + zero).all()


def test_nibbles_less_zeros() -> None:
    assembly = assembly_of(operands, "nibbles_as")
    assert assembly.pack == 2
    for zero in range(-8, 8):
        zeros = [zero, -8, 0, 7]
        outs = assembly.run(halves(WORDS), *(bfloat16(-136 - z) for z in zeros))
        for plane in range(4):
            assert (floats(outs[plane]) == signed(nibble(plane)) - zeros[plane]).all()


def test_nibbles_by_16() -> None:
    assembly = assembly_of(operands, "nibbles_by_16")
    assert assembly.pack == 4
    for plane, out in enumerate(planes_of_bytes(assembly)):
        assert (out == 16 * signed(nibble(plane))).all()


@pytest.mark.parametrize("origin", [0, 7, 8, 15])
def test_points_of_the_grid(origin: int) -> None:
    assembly = assembly_of(operands, "points_as")
    assert assembly.pack == 2
    for step in range(1, 17):
        less, steps = [bfloat16(-128 - origin)] * 4, [bfloat16(step)] * 4
        for plane, out in enumerate(assembly.run(halves(WORDS), *less, *steps)):
            assert (floats(out) == step * (nibble(plane) - origin)).all()


@pytest.mark.parametrize("origin", [7, 8])
def test_points_of_the_grid_as_bytes(origin: int) -> None:
    assembly = assembly_of(operands, "points_as_bytes")
    assert assembly.pack == 4
    for first in range(1, 16, 4):
        steps = [min(first + plane, 15) for plane in range(4)]
        windows = sum((steps[plane] - 1 + 16 * origin) << 8 * plane for plane in range(4))
        outs = planes_of_bytes(assembly, *[np.full(len(WORDS) // 4, windows, np.uint32)] * 4)
        for plane, out in enumerate(outs):
            assert (out == steps[plane] * (nibble(plane) - origin)).all()
