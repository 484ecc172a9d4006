"""Matrices of integers as compressed-tensors packs them, for checkpoints of tests."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from support.quantized_checkpoints import Pack, scales_of, words


def ints(
    bits: int = 4,
    span: int | str = 32,
    *,
    symmetric: bool = True,
    packed: bool = True,
    order: bool = False,
    flat: bool = False,
    skipped: tuple[str, ...] = ("lm_head",),
) -> Pack:
    """``span``: columns of a group, row or matrix. ``flat``: scales of rows have one dimension."""

    def pack(generator: np.random.Generator, module: str, n: int, k: int) -> Any:
        if any(name in f"{module}." for name in skipped):
            return None
        groups = k // span if isinstance(span, int) else 1
        rows = 1 if span == "matrix" else n
        top = 1 << (bits - 1)
        codes = generator.integers(-top, top, (n, k))
        scales = scales_of(generator, k, top, rows, groups)
        zeros = np.zeros((rows, groups), int)
        if not symmetric:
            zeros = generator.integers(-top, top, (rows, groups))
        group_of = np.arange(k) // (k // groups)
        if order:
            group_of = generator.permutation(group_of)
        every = np.zeros((n, 1), int)
        points = codes - (zeros + every)[:, group_of]
        values = points.astype(np.float32) * (scales + every.astype(np.float32))[:, group_of]
        own: dict[str, Any] = {"weight_scale": scales.astype(ml_dtypes.bfloat16)}
        if flat:
            own["weight_scale"] = own["weight_scale"].reshape(-1)
        if packed:
            own["weight_packed"] = words(codes + top, bits)
            own["weight_shape"] = np.array([n, k], np.int64)
        else:
            own["weight"] = codes.astype(np.int8)
        if not symmetric and packed and span != "matrix":
            own["weight_zero_point"] = np.ascontiguousarray(words(zeros.T + top, bits).T)
        elif not symmetric:
            own["weight_zero_point"] = zeros.astype(np.int8)
        if order:
            own["weight_g_idx"] = group_of.astype(np.int32)
        return own, values

    return pack
