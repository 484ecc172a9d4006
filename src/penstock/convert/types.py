"""The types that files are written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.errors import ConfigError
from penstock.models.spec import DType


@dataclass(frozen=True)
class FileType:
    """A type of files."""

    name: str
    number: int
    """``general.file_type``"""
    matrix: str
    """The type of matrices."""
    head: str
    """The type of the output matrix, which is the embedding where a model has no other."""
    more: str | None = None
    """The type of those matrices of a mixture that matter most: those of values, and
    ``ffn_down``, in the first and the last eighth of the layers, and in each third of the others.
    """
    first: str | None = None
    """The type of values in the first layers, and of ``ffn_down`` in the first part of them."""
    first_values: int = 4
    """The layers whose values are in :attr:`first`."""
    first_part: int = 8
    """A part of so many of the layers has ``ffn_down`` in :attr:`first`."""
    values: str | None = None
    """The type of the other matrices that make values; None: that of matrices."""
    shared_values: str | None = None
    """The type of these where four heads or more read one's values; None: as others."""
    down: str | None = None
    """The type of the other ``ffn_down``; None: that of matrices."""
    attention_output: str | None = None
    """The type of ``attn_output``; None: that of matrices."""
    keeps: bool = False
    """Whether matrices that the source has quantized keep their values."""


FILE_TYPES: Final[Mapping[str, FileType]] = {
    each.name: each
    for each in (
        FileType("F32", 0, "F32", "F32"),
        FileType("F16", 1, "F16", "F16"),
        FileType("BF16", 32, "BF16", "BF16"),
        FileType("Q8_0", 7, "Q8_0", "Q8_0"),
        FileType("Q6_K", 18, "Q6_K", "Q6_K"),
        FileType("Q5_K_M", 17, "Q5_K", "Q6_K", more="Q6_K"),
        FileType("Q5_K_S", 16, "Q5_K", "Q6_K"),
        FileType("Q4_K_M", 15, "Q4_K", "Q6_K", more="Q6_K"),
        FileType("Q4_K_S", 14, "Q4_K", "Q6_K", first="Q5_K"),
        FileType("Q5_1", 9, "Q5_1", "Q6_K"),
        FileType("Q5_0", 8, "Q5_0", "Q6_K"),
        FileType("Q4_1", 3, "Q4_1", "Q6_K"),
        FileType("Q4_0", 2, "Q4_0", "Q6_K"),
        FileType(
            *("Q3_K_L", 13, "Q3_K", "Q6_K"), values="Q5_K", down="Q5_K", attention_output="Q5_K"
        ),
        FileType(
            *("Q3_K_M", 12, "Q3_K", "Q6_K"),
            first="Q5_K",
            first_values=2,
            first_part=16,
            values="Q4_K",
            down="Q4_K",
            attention_output="Q4_K",
        ),
        FileType("Q3_K_S", 11, "Q3_K", "Q6_K"),
        FileType(
            *("Q2_K", 10, "Q2_K", "Q6_K"),
            values="Q3_K",
            shared_values="Q4_K",
            down="Q3_K",
            attention_output="Q3_K",
        ),
    )
}
"""Types of files by name, the largest first."""


KEPT: Final = FileType("KEPT", 0, "F32", "F32", keeps=True)
"""What is for quantized checkpoints: each matrix is in the type whose blocks have its values, and
others have the type of floats that the checkpoint has. :func:`kept` says which these are."""
_NUMBERS: Final[Mapping[str, int]] = {"Q4_0": 2, "Q5_0": 8, "Q8_0": 7, "MXFP4": 38}


def kept(stored: str, floats: DType) -> FileType:
    """:data:`KEPT`, where most matrices are in the type ``stored``, and others in ``floats``."""
    kind = _FLOATS[floats]
    return replace(KEPT, number=_NUMBERS.get(stored, 0), matrix=kind, head=kind)


_FLOATS: Final[Mapping[DType, str]] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}

ALIASES: Final[Mapping[str, str]] = {
    "Q5_K": "Q5_K_M",
    "Q4_K": "Q4_K_M",
    "Q3_K": "Q3_K_M",
}
"""Short names that ``llama-quantize`` has."""


def file_type(name: str) -> FileType:
    """The type of this name, in letters of any case, ``-`` for ``_`` too. Raises ConfigError."""
    full = name.upper().replace("-", "_")
    if full == KEPT.name:
        return KEPT
    found = FILE_TYPES.get(ALIASES.get(full, full))
    if found is None:
        known = ", ".join((*FILE_TYPES, KEPT.name))
        raise ConfigError(f"type {name!r:.40} is not written; those that are: {known}")
    return found
