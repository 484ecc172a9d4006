"""Rounds matrices to blocks of published formats: the other direction of ``quant/formats``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from penstock.quant.blocks import F32, Bytes
from penstock.quant.encode.encoder import Encoder
from penstock.quant.encode.k_quants import encode_q4_k, encode_q5_k, encode_q6_k
from penstock.quant.encode.legacy import encode_q4_0, encode_q5_0, encode_q5_1, encode_q8_0
from penstock.quant.formats import GGUF_FORMATS

__all__ = ["ENCODERS", "MAX_VALUE", "encode"]

ENCODERS: Final[Mapping[str, Encoder]] = {
    "Q8_0": encode_q8_0,
    "Q4_0": encode_q4_0,
    "Q5_0": encode_q5_0,
    "Q5_1": encode_q5_1,
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


def encode(name: str, values: F32) -> Bytes:
    """Round float32 ``[n, k]`` to the format ``name``: uint8 ``[n, k / columns, block_bytes]``.

    ``k`` is a multiple of the format's columns, and all values are finite and at most
    :data:`MAX_VALUE` in magnitude, which the caller has checked. A row's blocks depend on that row
    alone.
    """
    scheme, encoder = GGUF_FORMATS[name].scheme, ENCODERS[name]
    n, k = values.shape
    blocks = np.ascontiguousarray(values, np.float32).reshape(-1, scheme.columns)
    encoded = np.empty((len(blocks), scheme.block_bytes), np.uint8)
    some = _CHUNK // scheme.columns
    for first in range(0, len(blocks), some):
        encoded[first : first + some] = encoder(blocks[first : first + some])
    return encoded.reshape(n, k // scheme.columns, scheme.block_bytes)
