"""The block formats that are known, each with its decoder."""

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

FORMATS: Final[Mapping[str, BlockFormat]] = {
    each.scheme.format: each for each in (*_LEGACY, *_K_QUANTS, *_CODE_BOOKS)
}
"""Those of files, by name, as GGUF's tools call them."""

ALL_FORMATS: Final[Mapping[str, BlockFormat]] = {
    **FORMATS,
    **{each.scheme.format: each for each in (FP8_128, FP8_32, MXFP8, NF4, FP4, NVFP4_SCALED)},
}
"""Also those that codes and scales of other checkpoints are put together to, by name."""
