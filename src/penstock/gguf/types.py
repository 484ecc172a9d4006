"""The types of tensors in GGUF files: their numbers, names and sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class TensorType:
    """How the values of a tensor are kept: in blocks of so many values and bytes."""

    name: str
    """The name that GGUF's tools have for it."""
    columns: int
    block_bytes: int

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor, whose rows are whole blocks."""
        return math.prod(shape) // self.columns * self.block_bytes


TYPES: Final[Mapping[int, TensorType]] = {
    number: TensorType(*each)
    for number, each in {
        0: ("F32", 1, 4),
        1: ("F16", 1, 2),
        2: ("Q4_0", 32, 18),
        3: ("Q4_1", 32, 20),
        6: ("Q5_0", 32, 22),
        7: ("Q5_1", 32, 24),
        8: ("Q8_0", 32, 34),
        10: ("Q2_K", 256, 84),
        11: ("Q3_K", 256, 110),
        12: ("Q4_K", 256, 144),
        13: ("Q5_K", 256, 176),
        14: ("Q6_K", 256, 210),
        16: ("IQ2_XXS", 256, 66),
        17: ("IQ2_XS", 256, 74),
        18: ("IQ3_XXS", 256, 98),
        19: ("IQ1_S", 256, 50),
        20: ("IQ4_NL", 32, 18),
        21: ("IQ3_S", 256, 110),
        22: ("IQ2_S", 256, 82),
        23: ("IQ4_XS", 256, 136),
        24: ("I8", 1, 1),
        25: ("I16", 1, 2),
        26: ("I32", 1, 4),
        27: ("I64", 1, 8),
        28: ("F64", 1, 8),
        29: ("IQ1_M", 256, 56),
        30: ("BF16", 1, 2),
        34: ("TQ1_0", 256, 54),
        35: ("TQ2_0", 256, 66),
        39: ("MXFP4", 32, 17),
        40: ("NVFP4", 64, 36),
    }.items()
}
"""The types of tensors by their number in files. Types of intermediate results (Q8_1, Q8_K), which
no file holds, and types that ggml has removed are missing."""

_NUMBERS: Final[Mapping[str, int]] = {each.name: number for number, each in TYPES.items()}


def type_number(name: str) -> int:
    """The number that files have for the type of this name."""
    return _NUMBERS[name]


def type_named(name: str) -> TensorType:
    """The type that GGUF's tools call so."""
    return TYPES[_NUMBERS[name]]
