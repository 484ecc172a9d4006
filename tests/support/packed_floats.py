"""Matrices in small floating-point types, value by value, for checkpoints of tests."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from support.quantized_checkpoints import F32, Pack


def value_of(code: int) -> float:
    """E4M3: a sign, four bits of exponent, three of mantissa."""
    sign, exponent, mantissa = -1.0 if code & 128 else 1.0, code >> 3 & 15, code & 7
    small = exponent == 0
    return sign * (mantissa / 8 + (not small)) * 2.0 ** (max(exponent, 1) - 7)


def spread(scales: F32, rows: int, columns: int, n: int, k: int) -> F32:
    """Each scale at its tile's places; the last tiles are smaller."""
    return np.repeat(np.repeat(scales, rows, 0), columns, 1)[:n, :k]


def fp8(
    tile: tuple[int | None, int | None],
    scale: str,
    skipped: tuple[str, ...] = ("lm_head",),
    flat: bool = False,
    e8m0: bool = False,
    beside: tuple[str, ...] = (),
) -> Pack:
    """``flat``: scales have no dimensions of 1. ``beside``: further tensors of a matrix."""
    table = np.array([value_of(code) for code in range(256)], np.float32)

    def pack(generator: np.random.Generator, module: str, n: int, k: int) -> Any:
        if any(name in f"{module}." for name in skipped):
            return None
        rows, columns = tile[0] or n, tile[1] or k
        codes = generator.integers(0, 127, (n, k)) + 128 * generator.integers(0, 2, (n, k))
        shape = -(-n // rows), -(-k // columns)
        scales = (generator.random(shape) + 0.5).astype(np.float32) / np.float32(200 * k**0.5)
        stored: Any = scales
        if e8m0:
            exponents = generator.integers(114, 117, shape).astype(np.uint8)
            scales = (2.0 ** (exponents.astype(np.float32) - 127)).astype(np.float32)
            stored = exponents.view(ml_dtypes.float8_e8m0fnu)
        own = {
            "weight": codes.astype(np.uint8).view(ml_dtypes.float8_e4m3fn),
            scale: stored.squeeze() if flat else stored,
        }
        own |= {name: np.ones((), np.float32) for name in beside}
        return own, table[codes] * spread(scales, rows, columns, n, k)

    return pack


def nvfp4(group: int, factor: str | None, divides: bool, weight: str) -> Pack:
    table = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    values = np.array(table + [-x for x in table], np.float32)

    def pack(generator: np.random.Generator, module: str, n: int, k: int) -> Any:
        if module == "lm_head":
            return None
        codes = generator.integers(0, 16, (n, k))
        own: dict[str, Any] = {weight: (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)}
        if factor is None:
            exponents = generator.integers(121, 125, (n, k // group)).astype(np.uint8)
            own["weight_scale"] = exponents
            scales = (2.0 ** (exponents.astype(np.float32) - 127)).astype(np.float32)
        else:
            stored = generator.integers(40, 100, (n, k // group))
            whole = np.float32(400.0 if divides else 0.003)
            own["weight_scale"] = stored.astype(np.uint8).view(ml_dtypes.float8_e4m3fn)
            own[factor] = np.array([whole]) if divides else np.array(whole)
            own["input_scale"] = np.ones((), np.float32)
            scales = np.array([value_of(code) for code in range(256)], np.float32)[stored]
            scales = scales / whole if divides else scales * whole
        return own, values[codes] * np.repeat(scales, group, axis=1)

    return pack
