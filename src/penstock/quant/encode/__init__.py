"""Rounds matrices to blocks of published formats: the other direction of ``quant/formats``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from penstock.quant.blocks import F32, Bytes
from penstock.quant.encode.encoder import Encoder, MatrixEncoder
from penstock.quant.encode.k_quants import (
    encode_q2_k,
    encode_q3_k,
    encode_q4_k,
    encode_q5_k,
    encode_q6_k,
)
from penstock.quant.encode.legacy import (
    encode_q4_0,
    encode_q4_1,
    encode_q5_0,
    encode_q5_1,
    encode_q8_0,
)
from penstock.quant.formats import GGUF_FORMATS

__all__ = ["ENCODERS", "MAX_VALUE", "MatrixEncoder", "encode"]

ENCODERS: Final[Mapping[str, Encoder]] = {
    "Q8_0": encode_q8_0,
    "Q4_0": encode_q4_0,
    "Q4_1": encode_q4_1,
    "Q5_0": encode_q5_0,
    "Q5_1": encode_q5_1,
    "Q2_K": encode_q2_k,
    "Q3_K": encode_q3_k,
    "Q4_K": encode_q4_k,
    "Q5_K": encode_q5_k,
    "Q6_K": encode_q6_k,
}
"""Encoders by the names of :data:`~penstock.quant.formats.GGUF_FORMATS`."""

_CHUNK: Final = 1 << 16
"""Values that are rounded at a time, so that what is computed of them stays in a core's cache."""

MAX_VALUE: Final = 65504.0
"""The largest magnitude that all formats can hold: every scale is a float16, and is at most as
large as the largest value of its block."""


def encode(name: str, values: F32, importance: F32 | None = None) -> Bytes:
    """The :class:`~penstock.quant.encode.encoder.MatrixEncoder` in NumPy, which says what the
    others compute."""
    scheme, encoder = GGUF_FORMATS[name].scheme, ENCODERS[name]
    n, k = values.shape
    per_row = k // scheme.columns
    blocks = np.ascontiguousarray(values, np.float32).reshape(-1, scheme.columns)
    encoded = np.empty((len(blocks), scheme.block_bytes), np.uint8)
    some = _CHUNK // scheme.columns
    weights: F32 | None = None
    for first in range(0, len(blocks), some):
        taken = blocks[first : first + some]
        if importance is not None:
            at = np.arange(first, first + len(taken)) % per_row
            weights = importance.reshape(per_row, scheme.columns)[at]
        encoded[first : first + some] = encoder(taken, weights)
    return encoded.reshape(n, per_row, scheme.block_bytes)
