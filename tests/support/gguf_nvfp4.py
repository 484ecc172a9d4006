"""GGUF files in NVFP4, whose matrices have factors in tensors of their own."""

from __future__ import annotations

from typing import Final

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize
from numpy.typing import NDArray

from support.gguf_models import rounded

F32 = NDArray[np.float32]
Tensors = dict[str, F32]

EXACT: Final = 2.0**-12
"""The factor of matrices whose values are then exact."""


def coded(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) > 1 and shape[-1] % 64 == 0 and "ffn_gate_inp" not in name


def nvfp4(name: str, shape: tuple[int, ...]) -> Type:
    """Every matrix whose rows are whole blocks, the table of the embedding too."""
    return Type.NVFP4 if coded(name, shape) else Type.F32


def factor_of(name: str, values: F32) -> F32:
    """The factor by which converters use all scales of E4M3, of each matrix of a stack."""
    if "attn_output" in name:
        return np.array([EXACT], np.float32)
    most = np.abs(values).reshape(*values.shape[:-2], -1).max(axis=-1)
    return np.atleast_1d(most / np.float32(448 * 6)).astype(np.float32)


def with_factors(tensors: Tensors) -> Tensors:
    """Matrices divided by factors, and these beside them; the values of one layer have none."""
    changed: Tensors = {}
    for name, values in tensors.items():
        changed[name] = values
        if coded(name, values.shape) and name != "blk.1.attn_v.weight":
            factor = factor_of(name, values)
            changed[name] = (values.T / factor).T
            changed[name.removesuffix("weight") + "scale"] = factor
    return changed


def decoded(tensors: Tensors) -> Tensors:
    """What the ``gguf`` package makes of these in NVFP4, times their factors."""
    changed = with_factors(tensors)
    result: Tensors = {}
    for name, values in changed.items():
        if coded(name, values.shape):
            blocks = rounded(values, Type.NVFP4)
            factor = changed.get(name.removesuffix("weight") + "scale", np.ones(1, np.float32))
            result[name] = (dequantize(blocks, Type.NVFP4).T * factor).T
        elif not name.endswith(".scale"):
            result[name] = values
    return result
