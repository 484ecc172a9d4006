"""How much the native kernels' panels take of matrices in blocks: what memory estimates need.

``csrc/kernels/gemm_block_format.h`` has the layouts themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class BlockLayout:
    """The segments that a row of a matrix is made of."""

    columns: int
    """Columns of a segment. A row is padded to whole ones."""
    segment_bytes: int
    """The bytes of a segment of one row, in the kernels' layout."""

    def nbytes(self, n: int, k: int) -> int:
        """The bytes of an ``[n, k]`` matrix, but for what pads whole panels."""
        return n * -(-k // self.columns) * self.segment_bytes


BLOCK_LAYOUTS: Final[Mapping[str, BlockLayout]] = {
    "Q4_0": BlockLayout(64, 36),
    "Q4_1": BlockLayout(64, 40),
    "Q5_0": BlockLayout(64, 44),
    "Q5_1": BlockLayout(64, 48),
    "Q8_0": BlockLayout(64, 68),
    "Q2_K": BlockLayout(256, 84),
    "Q3_K": BlockLayout(256, 116),
    "Q4_K": BlockLayout(256, 148),
    "Q5_K": BlockLayout(256, 180),
    "Q6_K": BlockLayout(256, 212),
    "IQ4_NL": BlockLayout(64, 36),
    "IQ4_XS": BlockLayout(256, 140),
    "MXFP4": BlockLayout(128, 68),
    "NVFP4": BlockLayout(64, 40),
    "FP8_128": BlockLayout(128, 132),
    "FP8_32": BlockLayout(64, 72),
    "MXFP8": BlockLayout(128, 132),
    "NF4": BlockLayout(64, 36),
    "FP4": BlockLayout(64, 36),
    "NVFP4_SCALED": BlockLayout(128, 76),
}
"""The formats of ``quant.formats`` that kernels multiply by, experts' too, and look rows up in."""

POINT_LAYOUTS: Final[Mapping[str, BlockLayout]] = {
    "E8P": BlockLayout(32, 8),
    "E8P second": BlockLayout(32, 8),
    "SMALL_E8": BlockLayout(32, 4),
}
"""Those of lattice points (:mod:`~penstock.backends.cpu.turned`)."""
