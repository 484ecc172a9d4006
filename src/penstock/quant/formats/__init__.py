"""The formats of blocks: what a block of each has, and which values it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.quant.blocks import BlockFormat
from penstock.quant.formats.code_books import IQ4_NL, IQ4_XS, MXFP4, NVFP4
from penstock.quant.formats.float_codes import FP4, FP8_32, FP8_128, MXFP8, NF4, NVFP4_SCALED
from penstock.quant.formats.k_quants import Q2_K, Q3_K, Q4_K, Q5_K, Q6_K
from penstock.quant.formats.legacy import Q4_0, Q4_1, Q5_0, Q5_1, Q8_0

_LEGACY: Final = (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0)
_K_QUANTS: Final = (Q2_K, Q3_K, Q4_K, Q5_K, Q6_K)
_CODE_BOOKS: Final = (IQ4_NL, IQ4_XS, MXFP4, NVFP4)
_FLOAT_CODES: Final = (FP8_128, FP8_32, MXFP8, NF4, FP4, NVFP4_SCALED)

GGUF_FORMATS: Final[Mapping[str, BlockFormat]] = {
    each.scheme.format: each for each in (*_LEGACY, *_K_QUANTS, *_CODE_BOOKS)
}
"""The formats that GGUF files have, by the names of their types (``gguf/types.py``)."""

BLOCK_FORMATS: Final[Mapping[str, BlockFormat]] = {
    **GGUF_FORMATS,
    **{each.scheme.format: each for each in _FLOAT_CODES},
}
"""All formats by name: also those that the codes and scales of other checkpoints are put together
to. Each backend has a table of those that it multiplies by, and of how its kernels keep them."""
