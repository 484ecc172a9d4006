"""Checks that a checkpoint's tensors have the shapes and types that sources ask for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from penstock.errors import WeightError
from penstock.gguf.names import is_gguf
from penstock.interface.source_walks import tensors
from penstock.interface.sources import (
    Element,
    Shape,
    Source,
    Stored,
)
from penstock.weights.tensor_file import Found

_QUANTIZED: Final = ("F4", "F6_", "F8_", "I8", "U8")
"""What names of types begin with that only quantized checkpoints have floats in."""
_TYPES: Final[Mapping[Element, tuple[tuple[str, ...], str]]] = {
    "int32": (("I32",), "packed codes"),
    "uint8": (("U8",), "codes or scales"),
    "int8": (("I8",), "codes"),
    "float8": (("F8_E4M3",), "numbers of 8 bits"),
    "scale": (("F32", "BF16", "F16", "F8_E8M0", "U8"), "scales"),
}
"""The types of files that tensors of quantized matrices may have, and what they hold."""


def check(source: Source, found: Found) -> None:
    """Raise WeightError unless each tensor, all of which are there, has the shape that is asked for
    and a type that models are served from."""
    for wanted in tensors(source):
        file, tensor = found[wanted.name]
        where = f"{file.path}: tensor {tensor.name!r}"
        types, what = _TYPES.get(wanted.element, ((), ""))
        if types and tensor.dtype not in types:
            raise WeightError(
                f"{where} is stored as {tensor.dtype}, but its format has {what} in "
                f"{' or '.join(types)}; take configuration and weights from one checkpoint"
            )
        if wanted.element == "blocks" and not tensor.in_blocks:
            raise WeightError(
                f"{where} is stored as {tensor.dtype}, but was in blocks before; the file has "
                "changed: start again"
            )
        if wanted.element == "float" and tensor.element is None:
            raise _unreadable(where, tensor.dtype)
        if not has_shape(tensor.shape, wanted):
            raise WeightError(
                f"{where} has shape {list(tensor.shape)}, but {_asks(file.path, wanted.shape)}"
            )


def has_shape(shape: Shape, wanted: Stored) -> bool:
    """Whether a tensor of this shape may be ``wanted``."""
    if wanted.element == "blocks":
        return _one_below_another(shape) == _one_below_another(wanted.shape)
    if not wanted.loose:
        return shape == wanted.shape
    return [n for n in shape if n != 1] == [n for n in wanted.shape if n != 1]


def _one_below_another(shape: Shape) -> Shape:
    """The shape of the matrices of a stack as one matrix."""
    return math.prod(shape[:-1]), shape[-1]


def _asks(path: Path, shape: Shape) -> str:
    if is_gguf(path):
        return (
            f"its metadata ask for {list(shape)}; download the file again, or convert the model "
            "again"
        )
    return f"config.json asks for {list(shape)}; take both from one checkpoint"


def _unreadable(where: str, dtype: str) -> WeightError:
    if dtype.startswith(_QUANTIZED):
        return WeightError(
            f"{where} is stored as {dtype}; quantized checkpoints of this kind are not supported "
            "yet, use one in F32, BF16 or F16"
        )
    return WeightError(
        f"{where} is stored as {dtype}, but it is read in F32, BF16 or F16; convert it to one of "
        "these, or take a checkpoint that has it so"
    )
